"""The catalogue of promises: all figures in the guides that a real run must reach, and some that no guide has.

``ELSEWHERE`` lists the figures that another benchmark measures, with its command.
"""

from __future__ import annotations

from benchmarks.promises.registry import Promise, at_least, at_most, within

_DEADLINES, _FLEET, _SHARING = "docs/deadlines.md", "docs/fleet.md", "docs/sharing.md"
_WATCH, _JOBS, _CODE = "docs/watch.md", "docs/jobs.md", "docs/training-code.md"
_BENCHMARKS, _README = "docs/benchmarks.md", "README.md"

_ALL = (
    # benchmarks.promises.training
    Promise(
        "container",
        "A job in a container ends at its deadline.",
        within(2, "%"),
        _BENCHMARKS,
        "| container | 90 s |",
    ),
    Promise(
        "cut-deadline",
        "A job meets a deadline that is cut to 80 % when the setpoint is 30 %.",
        within(2, "%"),
        _BENCHMARKS,
        "| container, deadline cut to 80 %",
    ),
    Promise(
        "process",
        "A job in a local process ends at its deadline.",
        within(3, "%"),
        _BENCHMARKS,
        "| local process | 90 s |",
    ),
    Promise(
        "step", "A control step takes 25 ms on average, with its requests to the engine and Airflow.", at_most(25, "ms")
    ),
    Promise(
        "period",
        "A run publishes one sample per second (median interval).",
        at_most(1.2, "s"),
        _WATCH,
        "about once a second",
    ),
    Promise(
        "new-deadline", "A new deadline takes effect within two seconds.", at_most(2, "s"), _WATCH, "within two seconds"
    ),
    Promise(
        "ended",
        "A task that a user marks as failed leaves no container after ten seconds.",
        at_most(10, "s"),
        _JOBS,
        "marked as success or failed remove their container",
    ),
    Promise(
        "orphan",
        "A task whose supervisor has died ends within 20 seconds.",
        at_most(20, "s"),
        _JOBS,
        "the task ends within seconds",
    ),
    # benchmarks.promises.sharing
    Promise(
        "crash",
        "Five jobs share the cores of a pool and end at their deadlines, even though the arbiter is killed.",
        within(5, "%"),
        _BENCHMARKS,
        "of their deadline (-0.30 to +0.37 %)",
    ),
    Promise(
        "tight",
        "Jobs meet deadlines that they would miss with equal shares of the cores.",
        within(2, "%"),
        _SHARING,
        "**Promises at admission.**",
    ),
    Promise(
        "without-deadline",
        "A job with a deadline alongside a job without a deadline is at most 5 % late.",
        at_most(5, "%"),
        "docs/throughput.md",
        "runs on the devices that they do not need",
    ),
    Promise(
        "pool",
        "The sums of ceilings and of quotas never exceed the pool: excess cores (0.01 for rounding).",
        at_most(0.01, "cores"),
        _SHARING,
        "**The pool is never over-allocated.**",
    ),
    # benchmarks.promises.shares
    Promise(
        "share-signal",
        "A local process whose share is enforced by signals gets its share.",
        within(3, "%"),
    ),
    Promise("share-cgroup", "A local process in a control group gets its share.", within(3, "%")),
    Promise("share-container", "A container gets its share.", within(3, "%")),
    Promise("launcher", "The launcher of a local process uses at most 2 % of a core.", at_most(2, "%")),
    Promise(
        "other-sessions",
        "A job's processes in other sessions share its allocation: excess in percent.",
        at_most(10, "%"),
    ),
    Promise(
        "resize",
        "Half a second after a resize, a job has its new allocation.",
        within(0.05, "cores"),
        _CODE,
        "control file",
    ),
    Promise(
        "wait-process",
        "wait() returns at its timeout or at the end of a local process: seconds late.",
        at_most(0.5, "s"),
    ),
    Promise(
        "wait-container", "wait() returns at its timeout or at the end of a container: seconds late.", at_most(1, "s")
    ),
    Promise(
        "stop-process",
        "stop() of a process that ignores SIGTERM returns in time: seconds beyond the grace period.",
        at_most(2.5, "s"),
    ),
    Promise(
        "stop-container",
        "stop() of a container that ignores SIGTERM returns in time: seconds beyond the grace period.",
        at_most(7, "s"),
    ),
    # benchmarks.promises.devices
    Promise(
        "device",
        "Busy containers of an emulated device together use all cores of the device.",
        within(10, "%"),
        _FLEET,
        "control groups of this machine",
    ),
    Promise(
        "starved",
        "No busy container of an emulated device starves: smallest share relative to the largest.",
        at_least(0.5),
        _BENCHMARKS,
        "the last of three busy containers starve",
    ),
    Promise(
        "link", "A round trip of 1 MB over an emulated link takes as long as the link's rate implies.", within(15, "%")
    ),
    Promise(
        "bottleneck-worker",
        "If a worker has more cores than its threads can use, a second worker is added (1: yes).",
        at_least(1),
        _BENCHMARKS,
        "| a worker of one thread on 1.5 cores |",
    ),
    Promise(
        "bottleneck-link",
        "If the link of a parameter server is full, a second server is added (1: yes).",
        at_least(1),
        _BENCHMARKS,
        "| the link of ps-0 limited to 20 Mbit/s",
    ),
    Promise(
        "bottleneck-server",
        "A parameter server that lacks cores gets idle cores of workers (1: yes).",
        at_least(1),
        _BENCHMARKS,
        "| a parameter server of a million numbers",
    ),
    # benchmarks.promises.fleet
    Promise(
        "unequal",
        "Workers with unequal shards end together at the deadline.",
        within(3, "%"),
        _FLEET,
        "Workers with unequal shards end together",
    ),
    Promise(
        "unequal-cores",
        "A worker with a shard of 50 samples gets more cores than a worker with 30: the ratio.",
        at_least(1.2),
        _FLEET,
        "Each worker meets the deadline on its own",
    ),
    Promise(
        "accuracy",
        "Three workers reach the accuracy of a single worker within one percentage point: points below it.",
        at_most(1, "points"),
        _FLEET,
        "within one percentage point",
    ),
    Promise(
        "demo",
        "`make demo` ends within 60 seconds of the start of its run.",
        at_most(60, "s"),
        _README,
        "60 seconds after the",
    ),
    Promise(
        "edge",
        "`make demo-edge` ends at its deadline.",
        within(5, "%"),
        _FLEET,
        "done at 81.1 s, deadline 80 s",
    ),
    Promise(
        "edge-parts",
        "In `make demo-edge`, the fast machine gets more samples than a slow one: the ratio.",
        at_least(1.2),
        _FLEET,
        "Schedule: ewr 69,951 flights",
    ),
    # benchmarks.promises.pages
    Promise("ten-hours", "The page of a ten-hour run opens within a second.", at_most(1, "s")),
    Promise(
        "frames", "A live page draws at least 80 % of the frames that an empty page draws: the ratio.", at_least(0.8)
    ),
    Promise("fifty", "A request for the list of fifty running jobs takes 300 ms (median).", at_most(300, "ms")),
    # benchmarks.promises.computing
    Promise("parse", "The example DAGs are parsed in 0.8 s of CPU time.", at_most(0.8, "s")),
    Promise("store", "The demo's store is created in 8 s of CPU time.", at_most(8, "s")),
    Promise(
        "schedule-1000",
        "With loaded profiles, a fleet of 1,000 machines is scheduled in 120 ms.",
        at_most(120, "ms"),
        _BENCHMARKS,
        "A fleet of 1,000 machines is scheduled in 60 to 120 ms",
    ),
    Promise(
        "on-time",
        "`on_time` decides for 5 jobs in well under a millisecond.",
        at_most(1, "ms"),
        _BENCHMARKS,
        "`on_time` decides in 0.06 ms for 5 jobs",
    ),
    Promise(
        "on-time-10000",
        "`on_time` decides for 10,000 jobs in half a second.",
        at_most(0.5, "s"),
        _BENCHMARKS,
        "0.21 s for 10,000 jobs on 200 devices",
    ),
    Promise(
        "milp",
        "`milp` decides in milliseconds (mean over two days of jobs).",
        at_most(2.6, "ms"),
        _BENCHMARKS,
        "One decision takes 1.2 to 2.6 ms on average",
    ),
    Promise(
        "milp-large",
        "`milp` decides for 1,000 jobs on 3,000 nodes in 0.6 s.",
        at_most(0.6, "s"),
        _BENCHMARKS,
        "1,000 jobs on 3,000 nodes takes 0.3 to 0.6 s",
    ),
    Promise(
        "milp-gap",
        "The plan of `milp` for 1,000 jobs on 3,000 nodes is at most 0.39 % from its bound.",
        at_most(0.39, "%"),
        _BENCHMARKS,
        "at most 0.39 % from the bound",
    ),
    Promise(
        "least-cost",
        "`least_cost` decides in 20 ms (mean).",
        at_most(20, "ms"),
        _BENCHMARKS,
        "`least_cost` decides in",
    ),
    Promise("control", "A step of the deadline controller takes 0.1 ms of CPU time.", at_most(0.1, "ms")),
    Promise("plant", "Simulating a ten-hour run takes half a second.", at_most(500, "ms")),
    Promise(
        "loops",
        "A thousand control loops use a third of a core (at most 0.4).",
        at_most(0.4, "cores"),
        _BENCHMARKS,
        "A thousand control loops use a third of a core",
    ),
    Promise("track", "track() costs about 80 ns per batch.", at_most(100, "ns"), _BENCHMARKS, "about 80 |"),
    Promise(
        "track-number",
        "track() with a reported number costs about 480 ns.",
        at_most(600, "ns"),
        _BENCHMARKS,
        "about 480 |",
    ),
    Promise(
        "track-tensor",
        "track() with a reported tensor costs about 1,100 ns.",
        at_most(1400, "ns"),
        _BENCHMARKS,
        "about 1,100 |",
    ),
)
PROMISES = {promise.id: promise for promise in _ALL}

ELSEWHERE = {
    "deviation and core-seconds by deadline, against the paper's controller": "benchmarks.deadline",
    "core-seconds saved by the thread count": "benchmarks.threads",
    "error of the learned functions of a device": "benchmarks.models",
    "gain of a schedule over a fair one": "benchmarks.scheduling",
    "speed, steps and accuracy of jobs without a deadline; 0.2 s without a sample during a step": "benchmarks.elastic",
    "samples and deadline when workers and the server are killed": "benchmarks.failures",
    "round trip of a model's state": "benchmarks.peers",
    "false alarms and detection of drift": "benchmarks.drift",
    "deadlines met, queues and cost by allocator; seconds of a simulated trace": "benchmarks.allocators",
}
