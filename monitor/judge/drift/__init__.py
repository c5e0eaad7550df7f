"""Drift: what got slower or hotter, since when, by how much, and why. Pure and incremental.

One `Detector` per target processes points in the order in which they were known (`observe`),
advances to a time (`advance`) and returns findings (`findings`). All of it is plain data that can
be stored between two points: a restart loses nothing, and a replay of the same points finds the
same to the last digit. Times are integer microseconds, only ever subtracted from one another.

    settings    thresholds and units of time
    evidence    the values that the parts exchange: effects, comparisons, warnings
    stats/      statistics without a subject: sequential tests, change points, regression, AR(1)
    speed/      decode rate, first token and engine steps at like load; service levels;
                process starts; before and after a change of configuration
    gpu/        one GPU: reading -> minute -> interval -> comparison; its baseline and conditions
    server/     the server's own figures between canaries, the workload, the prefix cache
    cause/      from an effect and the comparisons to a cause, by predicates
    problem/    effects and warnings as problems, and a problem as a finding
    detector    all of it for one target

`speed`, `gpu` and `server` do not import one another; `stats` imports none of the others.
"""
