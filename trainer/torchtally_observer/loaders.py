"""What a loader, its sampler, and its dataset say of themselves. Only attributes of instances are read: no code of the
program runs but `__len__`, which a DataLoader calls as well."""

import os
import sys
import weakref
import zlib
from itertools import islice

from torchtally_observer import contents, sketch

_OF_SAMPLERS = ("seed", "epoch", "rank", "num_replicas", "shuffle", "drop_last", "replacement")
_HERE = os.path.dirname(os.path.abspath(__file__))
_PYTHON = os.path.dirname(os.path.abspath(os.__file__))
_PACKAGES = ("site-packages", "dist-packages")
_ACCELERATE = os.path.join("accelerate", "data_loader.py")
_COLUMNS = 64  # a list of at most so many is one of columns, as of a TensorDataset, or of datasets
_LEAVES = 16  # of an entry
_PARTS = 3  # of a path
# Their samplers tell their length without drawing.
_LIBRARIES = {"torch", "accelerate", "lightning", "lightning_fabric", "pytorch_lightning", "timm", "torchdata"}
_LIBRARIES |= {"builtins", "torchvision", "transformers"}
_PLAIN = (str, int, float, bool, os.PathLike)


def described(source):
    """The fields that tell a loader from others, on all ranks alike where they run one program."""
    return {
        "place": place(),
        "type": _type(),
        "dataset": type(source.dataset).__name__,
        "length": length(source.dataset),
        "batch": _whole(_attributes(source.sampler).get("batch_size")) if source.batched else None,
        "workers": int(source.workers),
    }


def _whole(number):
    return int(number) if hasattr(number, "__index__") else None


def place():
    """Base name and line of the innermost frame outside of libraries: where the program iterates."""
    frame, outside = sys._getframe(1), None
    while frame is not None:
        file = frame.f_code.co_filename
        own = file.startswith((_HERE, _torch()))
        if not own and not file.startswith((_PYTHON, "<frozen")) and not any(name in file for name in _PACKAGES):
            return f"{os.path.basename(file)}:{frame.f_lineno}"
        if outside is None and not own:
            outside = f"{os.path.basename(file)}:{frame.f_lineno}"
        frame = frame.f_back
    return outside


def _type():
    """DataLoader, or the type of Accelerate's loader around it, which may draw for all ranks."""
    frame = sys._getframe(2) if "accelerate.data_loader" in sys.modules else None
    while frame is not None:
        if frame.f_code.co_name == "__iter__" and frame.f_code.co_filename.endswith(_ACCELERATE):
            return type(frame.f_locals.get("self")).__name__
        frame = frame.f_back
    return "DataLoader"


def _torch():
    return os.path.dirname(sys.modules["torch"].__file__)


def length(dataset):
    """The number of samples, None where the dataset does not tell."""
    try:
        return len(dataset)
    except Exception:
        return None


def batches(source):
    """The number of batches of a whole pass, None where it is not known.

    Of a stream, the sampler has no end. A sampler of the program's own is not asked: it may draw to count.
    """
    found = source.sampler
    for _ in range(8):
        if type(found).__module__.partition(".")[0] not in _LIBRARIES:
            return None
        inner = _inner(found)
        if inner is None:
            break
        found = inner
    return None if is_stream(source.dataset) else length(source.sampler)


def _inner(found):
    """What a sampler draws from, None where that is no sampler."""
    inside = _attributes(found)
    inner = next((inside[name] for name in ("batch_sampler", "sampler", "base_sampler") if name in inside), None)
    return None if inner is found else inner


def is_stream(dataset):
    """Whether the dataset is an IterableDataset."""
    return isinstance(dataset, sys.modules["torch.utils.data"].IterableDataset)


def sampler(source):
    """The innermost sampler: its type, and what it says of itself."""
    found, outer, skipped = source.sampler, [], None
    for _ in range(8):  # Accelerate's BatchSamplerShard wraps a batch sampler, which wraps a sampler
        inner = _inner(found)
        if inner is None:
            break
        outer.append(type(found).__name__)
        skipped = skipped or _attributes(found).get("skip_batches")
        found = inner
    values = {"type": type(found).__name__}
    for name in _OF_SAMPLERS:
        value = _attributes(found).get(name)
        if isinstance(value, (int, bool)):
            values[name] = value
    own = [name for name in outer if name != "BatchSampler"]
    if own:
        values["in"] = own[0]
    if isinstance(skipped, int):
        values["skipped"] = skipped
    if is_stream(source.dataset) and hasattr(type(source.dataset), "set_epoch"):  # it decides on its order itself
        values.update(set_epoch=True, persistent=bool(source.persistent))
    return values


def skipped(described):
    """The batches that a sampler leaves out at its begin, as Accelerate's does after a resume."""
    return described.get("skipped", 0)


def _attributes(found):
    return getattr(found, "__dict__", {})


class Base:
    """A dataset, and which of the samples of the dataset below all Subsets it holds."""

    def __init__(self, dataset, held):
        self.type, self.length = type(dataset).__name__, length(dataset)
        self.attributes, self.rows = attributes(dataset)
        self.held = held  # base indices by index; None: all of them


_bases = {}  # by dataset: a program that begins a pass in each step must not wait for a large Subset
_KEPT = 16


def chain(dataset):
    """The Base of a dataset, through Subsets."""
    chosen = vars(dataset).get("indices") if _is_subset(dataset) else None
    probe = (
        (id(chosen), len(chosen), *map(int, (chosen[0], chosen[len(chosen) // 2], chosen[-1])))
        if _some(chosen)
        else None
    )
    known = _bases.get(id(dataset))
    if known and known[0]() is dataset and known[1] == probe:
        return known[2]
    base = _chain(dataset)
    if len(_bases) >= _KEPT:
        _bases.clear()
    try:
        key = id(dataset)
        _bases[key] = weakref.ref(dataset, lambda _: _bases.pop(key, None)), probe, base
    except TypeError:
        pass
    return base


def _some(chosen):
    return hasattr(chosen, "__len__") and hasattr(chosen, "__getitem__") and len(chosen) > 0


def _chain(dataset):
    held = None
    while _is_subset(dataset):
        chosen = vars(dataset)["indices"]
        chosen = chosen.tolist() if hasattr(chosen, "tolist") else chosen
        chosen = [int(each) for each in chosen]
        held = chosen if held is None else [chosen[each] for each in held]
        dataset = vars(dataset)["dataset"]
    return Base(dataset, held)


def _is_subset(dataset):
    subset = sys.modules["torch.utils.data"].Subset
    own = vars(dataset) if isinstance(dataset, subset) else {}
    return type(dataset).__getitem__ is subset.__getitem__ and hasattr(own.get("indices"), "__len__") if own else False


def attributes(dataset, depth=3):
    """A checksum of a dataset's attributes, and how many rows of its data are in it. Where it differs, data may differ.

    Data is an attribute with as many entries as the dataset has samples, of which a few are read. If there is one that
    cannot be read, no row counts. Only what has no code of the program is read: plain values, lists, dicts, arrays,
    tensors, and data frames.
    """
    found, rows, many = [], 0, length(dataset)
    unread = False
    for name, value in sorted(_attributes(dataset).items(), key=lambda each: str(each[0])):
        if isinstance(value, _PLAIN):
            found.append((name, _plain(value)))
            rows += (many or 0) if name == "_fingerprint" else 0  # Hugging Face's datasets: it changes with the data
            continue
        value = _columns(value, many)
        for part in value if type(value) in (list, tuple) and 0 < len(value) <= _COLUMNS else [value]:
            if isinstance(part, sys.modules["torch.utils.data"].Dataset):
                inside, more = attributes(part, depth - 1) if depth else ("", 0)
                found.append((name, inside))
                rows, unread = rows + more, unread or not more
            elif _is_column(part):
                entries = _entries(part)
                found.append((name, len(part), entries))
                if len(part) == many:
                    rows, unread = rows + len(entries), unread or not entries
            else:
                found.append((name, type(part).__name__))
    return f"{zlib.crc32(repr(found).encode(errors='replace')):08x}", 0 if unread else rows


def _columns(value, many):
    """The columns that are the values of a dict; any other value as it is."""
    inside = list((contents.as_dict(value) or {}).values())
    return inside if inside and all(_is_column(each) and len(each) == many for each in inside) else value


def _is_column(value):
    kind = type(value)
    known = kind in (list, tuple) or (kind.__module__, kind.__name__) in (("torch", "Tensor"), ("numpy", "ndarray"))
    return (known and (kind in (list, tuple) or len(value.shape) > 0)) or _is_frame(value)


def _is_frame(value):
    kind = type(value)
    return kind.__module__.partition(".")[0] == "pandas" and kind.__name__ in ("DataFrame", "Series")


def _entries(column):
    """A few entries of a column, by value or by checksum; empty where one cannot be read."""
    at = sketch.of_contents(sketch.chosen(len(column)))
    if type(column) in (list, tuple):
        entries = [[*islice(_parts(column[each]), _LEAVES)] for each in at]
        return entries if all(each and None not in each for each in entries) else []
    if _is_frame(column):
        try:
            return sys.modules["pandas"].util.hash_pandas_object(column.iloc[at], index=False).tolist()
        except Exception:  # lists in a column
            return []
    return [read(each) for read in contents.readers([column], len(column)) for each in at]


def _parts(entry, depth=4):
    """The values in an entry, or their checksums; None for one that cannot be read, or that a cache has yet to fill."""
    named = _attributes(entry) if hasattr(type(entry), "__dataclass_fields__") else contents.as_dict(entry)
    if depth and (named is not None or type(entry) in (list, tuple)):
        for each in entry if named is None else named.values():
            yield from ["None"] if each is None else _parts(each, depth - 1)
    elif isinstance(entry, _PLAIN) or (type(entry).__module__ == "numpy" and not entry.shape):
        yield _plain(entry)
    else:
        yield next(iter(contents.of_sample(entry)), None)


def _plain(value):
    """A plain value, of a path its last parts: where data is mounted says nothing of it."""
    return "/".join(str(value).split("/")[-_PARTS:])
