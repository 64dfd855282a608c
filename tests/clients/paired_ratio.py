"""What something costs: throughput with it to throughput without, from rounds of slices that are taken in turn.

    paired_ratio.py FILE

FILE has a line for each slice: its round, `on` or `off`, writes a second, and the share of the processors' time that the machine's host took away
for others meanwhile (steal). Slices are compared within their round alone. The ratio is that of geometric means; then the same at equal steal, which on a
shared machine is most of what tells slices apart: a line is fitted to what it does (least squares of the logarithms). Whoever wants more of the processors
may have more taken away, and what of the cost comes by that is in the first figure alone. Errors are standard ones, from what rounds differ by.
"""

import math
import sys
from itertools import groupby


def dot(a, b):
    return sum(x * y for x, y in zip(a, b))


def ratio(rounds, with_steal):
    """The ratio in words, with its error if there are rounds enough to tell it."""
    on, rate, steal = zip(*(row for slices in rounds for row in slices))
    matters = with_steal and dot(steal, steal) > 0
    shared = dot(on, steal) / dot(steal, steal) if matters else 0
    # What of `on` is not explained by steal, and so what it does at equal steal (Frisch, Waugh and Lovell).
    clear = [value - shared * stolen for value, stolen in zip(on, steal)]
    effect = dot(clear, rate) / dot(clear, clear)
    by_steal = dot([r - effect * o for o, r in zip(on, rate)], steal) / dot(steal, steal) if matters else 0
    words = f"{math.exp(effect):.3f}"
    if len(rounds) < 3:
        return words
    left = iter([c * (r - effect * o - by_steal * s) for c, o, r, s in zip(clear, on, rate, steal)])
    spread = sum(sum(next(left) for _ in slices) ** 2 for slices in rounds)
    error = math.sqrt(spread * len(rounds) / (len(rounds) - 1)) / dot(clear, clear)
    return f"{words} +- {math.exp(effect) * error:.3f}"


def centred(slices):
    means = [sum(column) / len(slices) for column in zip(*slices)]
    return [[value - mean for value, mean in zip(row, means)] for row in slices]


with open(sys.argv[1]) as lines:
    slices = [line.split() for line in lines]
rounds = [
    centred([(float(how == "on"), math.log(float(rate)), float(steal)) for _, how, rate, steal in group])
    for _, group in groupby(slices, key=lambda fields: fields[0])
]
mean = {}
for wanted in ("on", "off"):
    rates = [float(rate) for _, how, rate, _ in slices if how == wanted]
    mean[wanted] = sum(rates) / len(rates)
stolen = sum(float(steal) for *_, steal in slices) / len(slices)
print(
    f"{mean['on']:.0f} writes a second with the tracker, {mean['off']:.0f} without: {ratio(rounds, False)}; "
    f"at equal steal ({stolen:.1%} of the time) {ratio(rounds, True)} ({len(rounds)} rounds)"
)
