"""Archives as they are published."""

import io
import tarfile


def write_archive(path, members):
    """A .tar.gz of {name: content}, in reverse: the order in an archive must not matter."""
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        for name, content in reversed(members.items()):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path
