"""Runs independent tasks in processes of this machine, as `pipeline.sweep` does on Spark.

The points of experiments (run.py) and the seeds of swarms (torture.py) are such tasks.
"""

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

__all__ = ["Done", "run_here"]

Task = TypeVar("Task")
Done = tuple[int, Any, str]  # the task's number, its result, its error ("" if it succeeded)


def run_here(
    function: Callable[[Task], Any], tasks: Iterable[Task], jobs: int = 0
) -> Iterator[Done]:
    """Call `function` with every task in `jobs` processes (0: one per core); yield results as they
    are ready.

    With one job everything runs in this process. If a worker process crashes, the pool ends, and
    all running and waiting tasks are reported with this error.
    """
    todo = enumerate(tasks)  # (number, task) of those that are not submitted yet
    jobs = jobs or os.cpu_count() or 1
    if jobs == 1:
        yield from (_numbered(function, number, task) for number, task in todo)
        return
    # Spawned, not forked, because this process may have threads.
    context = multiprocessing.get_context("spawn")
    running: set[Future[Done]] = set()
    unanswered: set[int] = set()  # the numbers of tasks that are running or being submitted
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_end_with_parent) as pool:
        try:
            while True:
                # One task waits for each process, so that no process is idle between two tasks.
                while len(running) < 2 * jobs and (following := next(todo, None)) is not None:
                    # Before `submit`: if the pool is broken it raises, and the task is reported.
                    unanswered.add(following[0])
                    running.add(pool.submit(_numbered, function, *following))
                if not running:
                    return
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    answer = future.result()
                    unanswered.remove(answer[0])
                    yield answer
        except BrokenProcessPool:
            for number in sorted([*unanswered, *(number for number, _ in todo)]):
                yield number, None, "not run to its end: a worker process died"
        except BaseException:  # Ctrl-C: do not wait for running tasks
            for worker in list(pool._processes.values()):
                worker.terminate()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _numbered(function: Callable[[Any], Any], number: int, task: Any) -> Done:
    try:
        return number, function(task), ""
    except Exception as error:
        return number, None, f"{type(error).__name__}: {error}\n{traceback.format_exc()}"


def _end_with_parent() -> None:
    """Set up a worker: it ignores Ctrl-C, and ends when its parent has ended for any reason."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
