"""Batches made ahead by worker processes. Worker k makes steps k, k + n, k + 2n, ...: what comes
out, and in which order, does not depend on how many there are."""

import multiprocessing
import os
import queue
import signal


def _work(make, first, stride, results, parent):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # whatever the consumer does with it
    step, failed = first, False
    while not failed:
        try:
            result = make(step)
        except Exception as error:  # handed over: the consumer raises it
            result, failed = error, True
        while True:
            try:
                results.put(result, timeout=5.0)
                break
            except queue.Full:
                if os.getppid() != parent:  # the consumer is gone
                    os._exit(1)
        step += stride


class Prefetcher:
    """Calls `make(step)` (picklable result, pure) for step, step + 1, ... `num_workers` 0: in this
    process, on demand. Start it before the accelerator is used: workers are forked."""

    def __init__(self, make, step, num_workers, ahead=3):
        self._make, self._step, self._queues, self._processes = make, step, [], []
        context = multiprocessing.get_context("fork")
        for i in range(num_workers):
            results = context.Queue(maxsize=ahead)
            process = context.Process(
                target=_work, args=(make, step + i, num_workers, results, os.getpid()), daemon=True
            )
            process.start()
            self._queues.append(results)
            self._processes.append(process)
        self._first = step

    def next(self):
        step, self._step = self._step, self._step + 1
        if not self._queues:
            return self._make(step)
        number = (step - self._first) % len(self._queues)
        while True:
            try:
                result = self._queues[number].get(timeout=5.0)
                break
            except queue.Empty:
                if not self._processes[number].is_alive():
                    raise RuntimeError(f"data worker {number} died before step {step}")
        if isinstance(result, Exception):
            raise result
        return result

    def close(self):
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join()
        for results in self._queues:
            results.cancel_join_thread()
