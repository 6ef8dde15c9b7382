"""The file of a checkpoint, and the comparison of what it answers with what is asked.

The file is a pickle of plain Python and numpy. It is written beside its place and moved
there, so that a reader never sees half of it and a crash leaves the previous one.
"""

import os
import pickle
import tempfile
from pathlib import Path


def save(path, snapshot):
    """Write a snapshot, or leave the file as it was.

    Parameters
    ----------
    path : str or path-like
    snapshot : dict
    """
    path = Path(path)
    handle, partial = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "wb") as file:
            pickle.dump(snapshot, file)
        os.replace(partial, path)
    except BaseException:
        os.unlink(partial)
        raise


def check_folder(path):
    """Raise a FileNotFoundError if there is no folder for a file."""
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise FileNotFoundError(
            f"The folder {str(folder)!r} of the checkpoint does not exist. Make it "
            "first, or give another path."
        )


def load(path):
    """Return the snapshot of a file, None where there is no file.

    Raises
    ------
    ValueError
        If the file holds something else.
    """
    if not Path(path).exists():
        return None
    with open(path, "rb") as file:
        try:
            snapshot = pickle.load(file)
        except Exception as error:  # of a foreign file it can be nearly anything
            raise ValueError(_foreign(path, error)) from error
    if not isinstance(snapshot, dict) or "question" not in snapshot:
        raise ValueError(_foreign(path, "it has no description of its fit"))
    return snapshot


def _foreign(path, cause):
    return (
        f"{str(path)!r} is not a checkpoint of this version ({cause}). Give another "
        "path, or resume=False to replace it."
    )


def check_same_question(before, now, path):
    """Raise a ValueError that says what differs between two fits.

    Parameters
    ----------
    before, now : dict of str to str
        Digests by the name of what they are of.
    path : str or path-like
        Of the checkpoint, for the message.
    """
    names = [*now, *(name for name in before if name not in now)]
    changed = [name for name in names if before.get(name) != now.get(name)]
    if changed:
        raise ValueError(
            f"The checkpoint {str(path)!r} belongs to another fit. What has changed: "
            f"{', '.join(changed)}. Give another path, or resume=False to replace it."
        )
