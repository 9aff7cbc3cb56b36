"""Step times of simulated runs whose steady rate is known: noise, and what real runs add to it."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Steps that the recipe leaves out.
SKIP = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Noise:
    """Noise of a step: its coefficient of variation, and the correlation of neighbouring steps."""

    cv: float
    phi: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Runs:
    """Simulated runs of one recipe."""

    seconds: Array  # step times, one row a run
    truth: Array  # steady step time of each run; of the system where the claim is that
    # How many times longer each step is because of one; lines that are means over several steps contain them.
    pauses: Array | None = None


Make = Callable[[np.random.Generator, Array, Noise], Runs]


def _normal(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    return rng.standard_normal(shape)


def _heavy(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    return np.asarray(rng.standard_t(3, shape) / np.sqrt(3.0))


def _skewed(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    return np.asarray(rng.exponential(1.0, shape) - 1.0)


def _pareto(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """An index of 2.5: the variance is finite, the skew is not."""
    index = 2.5
    deviation = np.sqrt(index / (index - 2)) / (index - 1)
    return np.asarray((rng.pareto(index, shape) - 1 / (index - 1)) / deviation)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """A way in which runs behave."""

    name: str
    make: Make  # from a matrix of noise (mean 1) to the runs
    draw: Callable[[np.random.Generator, tuple[int, int]], Array] = _normal  # distribution of the noise
    system: bool = False  # the claim is of the system, not of the run
    group: str  # of which kind that is, in the table of all rules
    foreseen: bool = True  # the first steps tell of the later ones; else an early look cannot know
    shortest: int = 25  # number of steps from which on the rule claims to hold
    alone: bool = True  # it does so for a single run, too, with no reference that knows how runs differ
    phi: float | None = None  # the correlation of neighbouring steps, where it is always the same

    def holds(self, steps: int, kind: Noise) -> bool:
        """The rule claims to hold for such runs."""
        return steps >= self.shortest and kind.cv <= 0.06 and kind.phi <= 0.9


def noise(rng: np.random.Generator, scenario: Scenario, kind: Noise, runs: int, steps: int) -> Array:
    """Draw step times of mean 1: an autoregressive process of first order."""
    from scipy import signal  # noqa: PLC0415  # a second of each start

    phi = kind.phi if scenario.phi is None else scenario.phi
    steps_before = round(10 / (1 - phi)) if phi else 0
    shocks = scenario.draw(rng, (runs, steps + steps_before)) * np.sqrt(1 - phi**2)
    shocks = signal.lfilter([1.0], [1.0, -phi], shocks, axis=1)
    return np.asarray(np.maximum(1.0 + kind.cv * shocks[:, steps_before:], 0.05))


def _plain(_rng: np.random.Generator, x: Array, _kind: Noise) -> Runs:
    return Runs(seconds=x, truth=np.ones(len(x)))


def _shaped(shape: Callable[[Array], Array], truth: Callable[[Array], float] | None = None) -> Make:
    """Multiply by a curve over the steps; the truth is its mean, or what `truth` makes of it."""

    def make(_rng: np.random.Generator, x: Array, _kind: Noise) -> Runs:
        curve = shape(np.arange(x.shape[1], dtype=np.float64))
        return Runs(seconds=x * curve, truth=np.full(len(x), np.mean(curve[SKIP:]) if truth is None else truth(curve)))

    return make


def _settling(amplitude: float, steps: float) -> Make:
    return _shaped(lambda t: 1 + amplitude * np.exp(-t / steps), _settled)


def _drifting(share: float) -> Make:
    return _shaped(lambda t: 1 + share * (t / len(t) - 0.5))


def _interrupted(rate: float, factor: float, length: int = 1, *, part: bool = False) -> Make:
    """Pauses at random steps: the steady rate is that without them, or with them if they are `part` of it."""

    def make(rng: np.random.Generator, x: Array, _kind: Noise) -> Runs:
        begins = rng.random(x.shape) < rate / length
        held = begins.copy()
        for i in range(1, length):
            held[:, i:] |= begins[:, :-i]
        paused = np.where(held, factor, 1.0)
        if part:
            return Runs(seconds=x * paused, truth=np.full(len(x), 1 + rate * (factor - 1)))
        return Runs(seconds=x * paused, truth=np.ones(len(x)), pauses=paused)

    return make


def _every(period: int, factor: float) -> Make:
    return _shaped(lambda t: np.where(t % period == period - 1, factor, 1.0), lambda _curve: 1 + (factor - 1) / period)


def _stretch(share: float, factor: float) -> Make:
    """Some steps in a row are slower, part of the run's rate; at the very beginning it would be a slow start."""

    def make(rng: np.random.Generator, x: Array, _kind: Noise) -> Runs:
        runs, steps = x.shape
        length = max(1, round(share * steps))
        first = rng.integers(SKIP + length, steps - length + 1, size=runs)
        t = np.arange(steps)
        slow = (t >= first[:, None]) & (t < first[:, None] + length)
        return Runs(
            seconds=np.where(slow, x * factor, x), truth=np.full(runs, 1 + (factor - 1) * length / (steps - SKIP))
        )

    return make


def _two_levels(factor: float, stay: float) -> Make:
    """Runs that change between two levels, such as those of a power cap; `stay` is the mean number of steps on each."""

    def make(rng: np.random.Generator, x: Array, _kind: Noise) -> Runs:
        changes = rng.random(x.shape) < 1 / stay
        changes[:, 0] = rng.random(len(x)) < 0.5
        slow = np.cumsum(changes, axis=1) % 2
        return Runs(seconds=x * np.where(slow, factor, 1.0), truth=np.full(len(x), (1 + factor) / 2))

    return make


def _swinging(amplitude: float, period: float) -> Make:
    def make(rng: np.random.Generator, x: Array, _kind: Noise) -> Runs:
        turns = np.arange(x.shape[1]) / period + rng.random((len(x), 1))
        return Runs(seconds=x * (1 + amplitude * np.sin(2 * np.pi * turns)), truth=np.ones(len(x)))

    return make


def _slower_at_the_end(t: Array) -> Array:
    return np.asarray(1 + 0.05 * np.maximum(0, t / len(t) - 0.7) / 0.3)


def _ramped(amplitude: float, steps: float) -> Make:
    return _shaped(lambda t: 1 + amplitude * np.maximum(0, 1 - t / steps), _settled)


def _compiling(factor: float, steps: float) -> Make:
    return _shaped(lambda t: np.where(t < steps, factor, 1.0), _settled)


def _slower_later(t: Array) -> Array:
    return np.where(t < len(t) / 2, 1.0, 1.03)


def _settled(_curve: Array) -> float:
    return 1.0


def _differing(spread: float) -> Make:
    """Runs of one system differ; the claim is of the system."""

    def make(rng: np.random.Generator, x: Array, _kind: Noise) -> Runs:
        return Runs(seconds=x * (1 + spread * rng.standard_normal((len(x), 1))), truth=np.ones(len(x)))

    return make


_CLEAN, _WARM_UP, _DRIFT, _PAUSES, _MEMORY = "clean", "warm-up", "drift", "pauses, spikes", "long memory"

SCENARIOS = (
    Scenario(name="clean", make=_plain, group=_CLEAN),
    Scenario(name="heavy tails", make=_plain, draw=_heavy, group=_CLEAN),
    Scenario(name="skewed", make=_plain, draw=_skewed, group=_CLEAN),
    Scenario(name="warm-up, 5 steps", make=_settling(0.5, 5), group=_WARM_UP),
    Scenario(name="warm-up, 20 steps", make=_settling(0.2, 20), group=_WARM_UP),
    Scenario(name="warm-up, 60 steps", make=_settling(0.1, 60), group=_WARM_UP, shortest=100),
    Scenario(name="warm-up, straight", make=_ramped(0.3, 30), group=_WARM_UP),
    Scenario(name="compilation, 15 steps", make=_compiling(3.0, 15), group=_WARM_UP),
    Scenario(name="drift +5 %", make=_drifting(0.05), group=_DRIFT),
    Scenario(name="drift -5 %", make=_drifting(-0.05), group=_DRIFT),
    Scenario(name="drift +16 %", make=_drifting(0.16), group=_DRIFT),
    Scenario(name="drift -16 %", make=_drifting(-0.16), group=_DRIFT),
    Scenario(name="GPUs warm up, 3 %", make=_shaped(lambda t: 1 + 0.03 * (1 - np.exp(-t / 40))), group=_DRIFT),
    Scenario(name="rare pauses", make=_interrupted(0.005, 5.0), group=_PAUSES),
    Scenario(name="pauses of 3 steps", make=_interrupted(0.02, 2.0, 3), group=_PAUSES),
    Scenario(name="evaluation each 12", make=_every(12, 2.0), group=_PAUSES),
    Scenario(name="spikes", make=_interrupted(0.02, 1.5), group=_PAUSES),
    Scenario(name="random pauses", make=_interrupted(0.05, 1.3, part=True), group=_PAUSES),
    Scenario(name="evaluation each 12, short", make=_every(12, 1.15), group=_PAUSES),
    Scenario(name="Pareto tails", make=_plain, draw=_pareto, group=_CLEAN),
    Scenario(name="phi 0.98", make=_plain, phi=0.98, group=_MEMORY, shortest=40),
    Scenario(name="two levels", make=_two_levels(1.08, 20.0), group=_MEMORY),
    Scenario(name="slow swing", make=_swinging(0.03, 150.0), group=_MEMORY),
    Scenario(name="late drift", make=_shaped(_slower_at_the_end), group=_DRIFT, foreseen=False),
    Scenario(name="slow stretch", make=_stretch(0.1, 1.05), group="slow stretch", foreseen=False),
    Scenario(name="second half slower", make=_shaped(_slower_later), group="slow stretch", foreseen=False),
    Scenario(name="between runs 0.3 %", make=_differing(0.003), group="0.3 % between runs", system=True),
    Scenario(name="between runs 0.7 %", make=_differing(0.007), group="0.7 % between runs", system=True, alone=False),
)


def drawn(rng: np.random.Generator, steps: int) -> Scenario:
    """Draw a scenario of the stated domain at random, for runs of so many steps; its name has what was drawn."""
    sizes: list[float] = []

    def draw(low: float, high: float) -> float:
        sizes.append(float(np.exp(rng.uniform(np.log(low), np.log(high)))))
        return sizes[-1]

    kinds: dict[str, Callable[[], Make]] = {
        "clean": lambda: _plain,
        "slow start": lambda: _settling(draw(0.02, 0.5), draw(3, 0.6 * (steps - SKIP))),
        "straight start": lambda: _ramped(draw(0.02, 0.5), draw(5, 0.3 * steps)),
        "compilation": lambda: _compiling(draw(1.3, 10), draw(1, 0.2 * steps)),
        "drift": lambda: _drifting(float(rng.choice([-1, 1])) * draw(0.005, 0.16)),
        "pauses": lambda: _interrupted(draw(0.002, 0.03), draw(1.4, 6), int(draw(1, 4))),
        "random pauses": lambda: _interrupted(draw(min(0.06, max(0.01, 5 / steps)), 0.06), draw(1.1, 1.5), part=True),
        "evaluation": lambda: _every(int(draw(5, 30)), draw(1.1, 3)),
        "two levels": lambda: _two_levels(1 + draw(0.005, 0.08), draw(5, 20)),
        "swing": lambda: _swinging(draw(0.003, 0.03), draw(10, 150)),
    }
    kind = str(rng.choice([*kinds]))
    make = kinds[kind]()
    laws = {"normal": _normal, "heavy": _heavy, "skewed": _skewed, "Pareto": _pareto} if kind == "clean" else {}
    law = str(rng.choice([*laws, "normal"]))
    name = " ".join([kind, law, *(f"{size:.3g}" for size in sizes)])
    return Scenario(name=name, make=make, draw=laws.get(law, _normal), group=kind)
