"""The engine's settings, and how long its steps take."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt
from typing import Literal, NamedTuple

from monitor.simulate.settings import Count, Natural, NotNegative, Positive, Seconds, Share


class Speeds(NamedTuple):
    """Speed relative to a cool, unthrottled GPU: 1.0 = full speed."""

    prefill: float
    decode: float


@dataclass(slots=True)
class EngineConfig:
    """Settings of the engine; all but the cache sizes can be changed while it runs. Field names
    are vLLM's flags where one exists.

    The default costs are those of an 8B model in bf16 on an H100: 16 GB of weights read per
    decode step at some 2.1 TB/s, 128 kB of keys and values per token of context (Llama 3 8B: 32
    layers, 8 key-value heads of 128), prefill at 40 % of 989 TFLOPS.
    """

    # vLLM's default for the API server on GPUs of 70 GB and more (engine/arg_utils.py)
    max_num_batched_tokens: Count = 8192
    max_num_seqs: Count = 1024
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    max_num_queued_reqs: Count | None = None  # None, as in vLLM: the queue is unlimited
    enable_prefix_caching: bool = True
    block_size: Count = 16
    num_gpu_blocks: Count = 27_000  # takes effect at the next restart
    num_speculative_tokens: Natural = 0
    spec_acceptance: Share = (
        0.7  # probability that a drafted token is accepted, given that those before it were
    )
    # costs at nominal clocks, in seconds unless the name says otherwise
    prefill_tok_s: Positive = 25_000.0
    # reading the weights: once a step, however many sequences share it
    decode_base_s: Positive = 0.0075
    decode_per_seq_s: Seconds = 30e-6
    decode_per_context_s: Seconds = 6.5e-8  # per token of context of each sequence
    draft_share: Share = 0.06  # of decode_base_s, for each drafted token
    host_s: Seconds = 0.0004  # the CPU's part of a step, in which the GPU is idle
    # compilation at the first answer per process start and parameter set; 4 to 20 s seen on vLLM
    # 0.32 CPU
    cold_s: Seconds = 0.0
    # faults
    frozen: bool = False  # no step ever ends
    dead: bool = False
    asleep: bool = False  # requests wait without an error
    # a slower kernel: all GPU work takes this many times longer
    kernel_slow_factor: Positive = 1.0
    # the same for prefill only: a fallback attention backend
    prefill_slow_factor: Positive = 1.0
    host_delay_s: Seconds = 0.0  # added to the CPU's part of every step
    uptime_decay_per_h: NotNegative = 0.0  # 0.02: after ten hours steps take 1.2 times as long
    # this start of the process landed in a slow state; a restart resets it
    slow_start_factor: Positive = 1.0

    @property
    def tokens_per_draft(self) -> float:
        """Mean number of tokens that a step yields per sequence: one, and the accepted
        drafted ones.
        """
        return sum(self.spec_acceptance**taken for taken in range(self.num_speculative_tokens + 1))


class StepBatch(NamedTuple):  # a tuple: one is made for each step
    """The work of one step."""

    prefill_tokens: int
    decodes: int  # sequences that get a token
    context_tokens: int  # of those sequences, in total
    drafted_tokens: int  # by speculation, in total


class StepCost(NamedTuple):
    """Seconds of one step: on the GPU, of which for prefill, and on the CPU."""

    device_s: float
    prefill_s: float
    host_s: float

    @property
    def duration_s(self) -> float:
        """Duration of the step."""
        return self.device_s + self.host_s

    @property
    def busy(self) -> float:
        """Share of the step in which the GPU is busy, 0..1."""
        return self.device_s / (self.device_s + self.host_s) if self.device_s else 0.0

    @property
    def prefill_share(self) -> float:
        """Share of the GPU's work that is prefill, 0..1."""
        return self.prefill_s / self.device_s if self.prefill_s else 0.0


class StepRates(NamedTuple):
    """Seconds of GPU time for each kind of work, and of CPU time per step, under present
    conditions.
    """

    prompt_s: float  # per prompt token
    # reading the weights; it overlaps prefill, so the longer of the two counts (roofline)
    read_s: float
    sequence_s: float  # per sequence that gets a token, and per drafted token
    context_s: float  # per token of their context
    draft_s: float  # per drafted token position, independent of the number of sequences
    host_s: float


def rates_of(config: EngineConfig, speeds: Speeds, uptime_s: float) -> StepRates:
    """The rates at these speeds, at this uptime."""
    slow = (
        config.kernel_slow_factor
        * config.slow_start_factor
        * (1.0 + config.uptime_decay_per_h * uptime_s / 3600)
    )
    decode = slow / speeds.decode
    return StepRates(
        prompt_s=slow * config.prefill_slow_factor / (config.prefill_tok_s * speeds.prefill),
        read_s=config.decode_base_s * decode,
        sequence_s=config.decode_per_seq_s * decode,
        context_s=config.decode_per_context_s * decode,
        draft_s=config.draft_share * config.decode_base_s * decode,
        host_s=config.host_s + config.host_delay_s,
    )


def fitting(
    most: int, first_s: float, growth: float, start_s: float, limit_s: float
) -> tuple[int, float]:
    """How many steps, at most `most`, end by `limit_s` when each is longer than the one before
    by `growth`; and when the last one ends.
    """
    steps, room_s = most, limit_s - start_s
    if room_s < inf:
        # steps·first + growth·steps·(steps - 1)/2 = room, solved for steps
        mean_s = first_s - growth / 2
        steps = (
            min(most, int(2 * room_s / (mean_s + sqrt(mean_s * mean_s + 2 * growth * room_s))))
            if room_s > 0
            else 0
        )
    return steps, start_s + steps * first_s + growth * steps * (steps - 1) / 2


def cost_of(batch: StepBatch, config: EngineConfig, rates: StepRates) -> StepCost:
    """The duration of a step."""
    prefill_s = batch.prefill_tokens * rates.prompt_s
    device_s = (
        max(rates.read_s, prefill_s)
        + batch.decodes * rates.sequence_s
        + batch.context_tokens * rates.context_s
    )
    if config.num_speculative_tokens and batch.decodes:
        device_s += (
            batch.drafted_tokens * rates.sequence_s + config.num_speculative_tokens * rates.draft_s
        )
    return StepCost(device_s, prefill_s, rates.host_s)
