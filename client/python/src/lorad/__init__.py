"""Fine-tunes LoRA adapters by a lorad daemon.

    import lorad

    client = lorad.connect()                                   # LORAD_SERVER, or 127.0.0.1:7070
    rows = [{"prompt": "2 + 2 =", "completion": " 4"}]
    job = client.train("smollm2-135m", rows, rank=16, learning_rate=2e-4)
    job.wait()
    job.adapter("my-adapter")                                  # a PEFT adapter's directory
    print(client.generate(job, "2 + 2 =", raw=True))           # asks it

`lorad.v1` has the API's messages and stubs as protoc made them.
"""

from lorad.answers import Answer, Evaluation
from lorad.callbacks import Callback, TensorBoardCallback, WandbCallback
from lorad.client import Client, connect
from lorad.errors import (AlreadyExistsError, FileError, InvalidError, JobFailedError, LoradError, NotFoundError, UnavailableError,
                          Violation)
from lorad.job import Job
from lorad.tables import Table

__version__ = "0.1.0"

__all__ = [
    "AlreadyExistsError", "Answer", "Callback", "Client", "Evaluation", "FileError", "InvalidError", "Job", "JobFailedError", "LoradError", "NotFoundError",
    "Table", "TensorBoardCallback", "UnavailableError", "Violation", "WandbCallback", "connect",
]
