"""Writers, readers and servers as processes of their own, called through a pipe (sides on Ray have actors)."""

import multiprocessing
import traceback

# A call that takes longer has failed.
PATIENCE = 180.0


def _serve(pipe, make, args) -> None:
    try:
        worker = make(*args)
        pipe.send((True, None))
        while True:
            name, arguments = pipe.recv()
            pipe.send((True, getattr(worker, name)(*arguments)))
    except EOFError:
        pass
    except BaseException:
        pipe.send((False, traceback.format_exc()))


class Process:
    """An object of `make(*args)` in a fresh process; ends when it is closed."""

    def __init__(self, make, *args):
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._name = f"{make.__module__}.{make.__name__}"
        self._process = context.Process(target=_serve, args=(other, make, args), daemon=True)
        self._process.start()
        other.close()
        self._answer("start")

    def call(self, name: str, *arguments):
        self._pipe.send((name, arguments))
        return self._answer(name)

    def _answer(self, name: str):
        if not self._pipe.poll(PATIENCE):
            raise TimeoutError(f"{self._name}.{name}: no answer for {PATIENCE:.0f} s")
        try:
            done, answer = self._pipe.recv()
        except EOFError:
            raise RuntimeError(f"{self._name}.{name}: its process ended") from None
        if not done:
            raise RuntimeError(f"{self._name}.{name}: {answer}")
        return answer

    def close(self) -> None:
        self._pipe.close()
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
