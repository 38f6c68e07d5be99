"""What runs in a process of its own, to compile there: programs in, executables out.

Run as a file, not imported, and without torch, jax and this package: it starts in half a second.
Messages are pickles on stdin and stdout; the end of stdin ends the process.
"""

import os
import pickle
import sys

from jaxlib import version, xla_client


def main() -> None:
    """Answer requests (program, options) with (serialized executable, None) or (None, error)."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever XLA prints is no answer
    client = xla_client.make_cpu_client(asynchronous=False)
    devices = xla_client.DeviceList((client.devices()[0],))

    def answer(value: object) -> None:
        pickle.dump(value, answers)
        answers.flush()

    answer(version.__version__)
    while True:
        try:
            program, options = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        settings = xla_client.CompileOptions()
        settings.env_option_overrides = options
        try:
            made = client.compile_and_load(program, devices, settings)
            found = client.serialize_executable(made), None
        except Exception as error:  # what it is says the other side
            found = None, str(error)
        answer(found)


if __name__ == "__main__":
    main()
