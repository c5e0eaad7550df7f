"""Drift: what got slower or hotter, since when, by how much, and why. Pure and incremental.

One `Detector` a target is fed with points in the order in which they were known (`observe`), is told the time (`advance`), and says what
it finds now (`findings`). All of it is plain data, so that it can be stored between two points and taken up: a restart loses nothing, and
a replay of the same points finds the same to the last digit. Times are integer microseconds and are only ever subtracted from one
another; the target's name is used in texts alone.

    values.py     what the parts hand to each other: settings, effects, signs
    blocks.py     robust blocks of canaries, and the residual that is left when probe and load are taken out
    load.py       the load that a canary met
    curve.py      how a metric depends on load, and where that is known (support); curvefit.py learns it
    cusum.py      the sequential tests: LLR-CUSUM, Shiryaev-Roberts
    wander.py     how a healthy server moves by itself
    offsets.py    how each start of the process differs from what is normal
    track.py      one metric: normal, residual, effect; dating.py: since when
    speed.py      decode rate (sensitive) and time to first token (coarse): effects
    levels.py     service levels from few canaries
    window.py     before and after a change of configuration: two samples under like load
    heat.py       cards: throttle time, margin, clock, power, thermal residual: early warnings and signs
    flow.py       the server's own figures between canaries: steps, queue, acceptance, prompt length
    starts.py     each start of the process as an effect of its own
    causes.py     from an effect and the signs around it to a cause with its evidence
    detector.py   all of it for one target
"""
