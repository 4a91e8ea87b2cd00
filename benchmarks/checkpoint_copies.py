"""What copies of checkpoints cost, for containers and for pods.

A job has a checkpoint folder of a given size. Run it as ``python -m benchmarks.checkpoint_copies``, with an engine
(``DOCKER_HOST``), a cluster (``KUBECONFIG``), or both. Prints, for each size: the times to read and to store a copy,
and the CPU time that it takes from the job. Copies go to a local folder: the bandwidth of an object store does not
count.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.engine import runtimes
from paceline.airflow.places import storage_path
from paceline.operators.checkpoint_copies import FileCopies
from paceline.runtime import Job, JobSpec

WRITES = """
import os, pathlib, signal, sys
for name in ("older", "newer"):
    pathlib.Path(os.environ["PACELINE_CHECKPOINT"], name).write_bytes(os.urandom(int(sys.argv[1]) // 2))
print("written", flush=True)
signal.pause()
"""


def main() -> None:
    """Print the times."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpoint_copies", description=__doc__)
    parser.add_argument("--image", default="paceline-trainer:latest")
    parser.add_argument("--sizes-mb", type=int, nargs="+", default=[1, 10, 100, 1000], help="sizes of the whole folder")
    parser.add_argument("--cores", type=float, default=0.5, help="allocation of the job (0.5)")
    parser.add_argument("--repeats", type=int, default=5, help="copies of each size (5)")
    options = parser.parse_args()
    print(f"{'':12}{'size':>8}{'read':>9}{'store':>9}{'range of both':>16}{'CPU of the job':>16}")
    for runtime in runtimes(cluster=bool(os.environ.get("KUBECONFIG"))):
        for size_mb in options.sizes_mb:
            with tempfile.TemporaryDirectory() as folder:
                script = Path(folder, "writes.py")
                script.write_text(WRITES)
                command = ["python", "writes.py", str(size_mb * 10**6)]
                files = {"writes.py": script}
                name = f"copies-{os.getpid()}-{size_mb}"
                spec = JobSpec(name, command, options.cores, image=options.image, files=files)
                job = runtime.start(spec)
                try:
                    _measure(job, runtime.name, size_mb, Path(folder), options.repeats)
                finally:
                    job.remove()


def _measure(job: Job, runtime: str, size_mb: int, folder: Path, repeats: int) -> None:
    while "written" not in job.read_lines():
        if job.wait(0.1):
            raise RuntimeError(f"the job has ended: {job.status()}")
    copies = FileCopies(storage_path(str(folder / "copies")), None)
    reads, stores, cpus = [], [], []
    for number in range(repeats):
        target = folder / str(number)
        before_s, began_s = _cpu_s(job), time.monotonic()
        job.collect(target, "checkpoint")
        read_s = time.monotonic()
        copies.save(target, {}, lambda: False)
        stores.append(time.monotonic() - read_s)
        reads.append(read_s - began_s)
        cpus.append(_cpu_s(job) - before_s)
        for path in target.iterdir():
            path.unlink()
    both = sorted(read + store for read, store in zip(reads, stores, strict=True))
    print(
        f"{runtime:12}{size_mb:5} MB{statistics.median(reads):7.2f} s{statistics.median(stores):7.2f} s"
        f"{both[0]:7.2f} to {both[-1]:.2f} s{statistics.median(cpus):14.2f} s",
        flush=True,
    )


def _cpu_s(job: Job) -> float:
    """Return the CPU time of the job in seconds, measured from now on."""
    first = job.usage().measured_s
    while True:
        usage = job.usage()
        if usage.measured_s > first + 0.5:
            return usage.cpu_s
        time.sleep(0.1)


if __name__ == "__main__":
    main()
