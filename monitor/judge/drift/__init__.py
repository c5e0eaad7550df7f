"""Drift: what got slower or hotter, since when, by how much, and why. Pure and incremental.

One `Detector` a target is fed with points in the order in which they were known (`observe`), is
told the time (`advance`), and says what it finds now (`findings`). All of it is plain data, so that
it can be stored between two points and taken up: a restart loses nothing, and a replay of the same
points finds the same to the last digit. Times are integer microseconds and are only ever subtracted
from one another; the target's name is used in texts alone.

    values.py     what the parts hand to each other: settings, effects, signs
    blocks.py     robust blocks of canaries, and the residual that is left when probe and load are
    taken out
    load.py       the load that a canary met
    curve.py      how a metric depends on load, and where that is known (support); curvefit.py
    learns it
    cusum.py      the sequential tests: LLR-CUSUM, Shiryaev-Roberts
    wander.py     how a healthy server moves by itself
    offsets.py    how each start of the process differs from what is normal
    track.py      one metric: normal, residual, and the effect that is open (effects.py); dating.py:
    since when
    speed.py      decode rate (sensitive) and time to first token (coarse): effects
    levels.py     service levels from few canaries
    window.py     before and after a change of configuration: two samples under like load
    heat.py       one GPU: throttle time, margin, clock, power, unexplained heat: early warnings
    and signs; its parts:
    looks.py          from looks to minutes, and from minutes to longer stretches
    cardrules.py      when a minute counts as a sign, and what is normal for a GPU; latch.py: when
    minutes make a sign
    thermalmodel.py   temperature against power; clockmodel.py: clock against both; fit.py: the line
    under them; forecast.py
    cardhistory.py    what a GPU was like, for days
    cardtexts.py      what its signs say to a person; cardproof.py: what works, and which reading is
    missing
    clocks.py     what a lost clock costs
    ceiling.py    how hard a GPU works when it works hardest, and when it rests
    flow.py       the server's own figures between canaries, in blocks (flowblocks.py): queue,
    acceptance, prompt length
    prefix.py     whether the prefix cache still finds what it should
    starts.py     each start of the process as an effect of its own, and loss by the hour
    causes.py     from an effect and the signs around it to a cause with its evidence; profiles.py:
    the table; proofs.py: its signs
    troubles.py   one root trouble, one incident: what the parts see, put together and kept steady
    findings.py   a trouble as a finding, with a sentence for a person
    detector.py   all of it for one target
    replay.py     a detector and the judges beside it (beside.py) over stored points, with a book of
    incidents (book.py)
"""
