"""Independent tasks in processes of this machine; the small sibling of `pipeline.sweep`."""

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
Done = tuple[int, Any, str]  # the task's number, what it returned, why it failed ("": it did not)


def run_here(
    function: Callable[[Task], Any], tasks: Iterable[Task], jobs: int = 0
) -> Iterator[Done]:
    """Call `function` with every task; answers as they come. `jobs`: processes; 0: one a core.

    With one job everything happens in this process. If a process dies, so does the pool: what was
    under way or waiting is answered with that.
    """
    todo = enumerate(tasks)
    jobs = jobs or os.cpu_count() or 1
    if jobs == 1:
        yield from (_numbered(function, number, task) for number, task in todo)
        return
    # Spawned, not forked: each worker starts clean, whatever threads this process has.
    context = multiprocessing.get_context("spawn")
    running: set[Future[Done]] = set()
    unanswered: set[int] = set()  # the numbers of those, and of one that is being handed over
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_live_with_parent) as pool:
        try:
            while True:
                while len(running) < 2 * jobs and (following := next(todo, None)) is not None:
                    unanswered.add(following[0])  # first: a pool that is broken takes nothing
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
        except BaseException:  # Ctrl-C: nobody waits for what is under way
            for worker in list(pool._processes.values()):
                worker.terminate()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _numbered(function: Callable[[Any], Any], number: int, task: Any) -> Done:
    try:
        return number, function(task), ""
    except Exception as error:
        return number, None, f"{type(error).__name__}: {error}\n{traceback.format_exc()}"


def _live_with_parent() -> None:
    """A worker leaves Ctrl-C to its parent, and goes when that is gone, however it went."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
