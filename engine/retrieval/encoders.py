"""Choosing an encoder: from its name to its specification, without loading it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from engine.machine import device, model_files
from engine.machine.device import Dtype
from engine.machine.remote.api_settings import ApiSettings, ServerSettings
from engine.messages.errors import InputError
from engine.messages.extras import require
from engine.messages.wording import quoted
from engine.sources import bundled

# As sentence-transformers' files name them.
Pooling = Literal["mean", "cls", "lasttoken", "weightedmean", "mean_sqrt_len_tokens", "max"]
BUNDLED = "bundled"
# Raise this when the arithmetic of ``encoder`` changes: existing vectors are then computed again.
_VERSION = 1
# MODEL@256.
_KEEPS = re.compile(r"(.+)@([1-9]\d{0,6})")
# Files whose content decides a vector; model cards, ONNX exports and the like do not.
_DECISIVE = ("*.safetensors", "*.json", "*.txt", "*.model", "*/config.json")


@dataclass(frozen=True)
class Preset:
    """How a family of encoders is meant to be used, as its authors chose.

    Attributes:
        pooling: how the last layer's token vectors, special tokens included, become the text's: their mean, also
            weighted by position from 1 on or times the root of their number, the vector of the first or of the last
            token, or the maximum by dimension.
        normalize: whether vectors are scaled to length 1 (the inner product is then the cosine).
        query_prefix, passage_prefix: text put before queries and before passages.
        separator: text between a passage's title and its text; left out if the title is empty.
        max_tokens: longer texts are truncated; special tokens count.
        lower_case: whether texts are lower-cased first.
        include_prompt: whether the tokens of a prefix count in pooling.
        layers: folders of sentence-transformers' ``Dense`` modules, applied after pooling in this order.
        dimensions: length to which vectors are cut before they are scaled to length 1 (Matryoshka embeddings); None for
            all.
    """

    pooling: Pooling
    normalize: bool
    query_prefix: str = ""
    passage_prefix: str = ""
    separator: str = " "
    max_tokens: int = 512
    lower_case: bool = False
    include_prompt: bool = True
    layers: tuple[str, ...] = ()
    dimensions: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(self.layers))  # a list if it comes from JSON


PRESETS: dict[str, Preset] = {
    # Izacard et al. 2022; generate_passage_embeddings.py: title + " " + text.
    "contriever": Preset("mean", normalize=False),
    # Wang et al. 2022; mteb_beir_eval.py: "passage: " + title + " " + text.
    "e5": Preset("mean", normalize=True, query_prefix="query: ", passage_prefix="passage: "),
    # Xiao et al. 2023, the English models; passages have no instruction.
    "bge": Preset(
        "cls",
        normalize=True,
        query_prefix="Represent this sentence for searching relevant passages: ",
    ),
    # all-MiniLM-L6-v2 and its siblings from sentence-transformers.
    "minilm": Preset("mean", normalize=True, max_tokens=256),
    # Any other encoder, unmodified.
    "mean": Preset("mean", normalize=False),
    "cls": Preset("cls", normalize=False),
}


@dataclass(frozen=True)
class EncoderOptions(ServerSettings):
    """Which encoder is used, and how it encodes queries.

    Attributes:
        encoder: A Hugging Face id in the local cache, a directory, "bundled" (all-MiniLM-L6-v2), or
            openai:MODEL, a model behind an OpenAI-compatible API; MODEL@256 keeps the first 256 dimensions.
        preset: How the encoder is used: contriever, e5, bge, minilm; mean or cls for any other. By
            default, what the model's sentence-transformers files specify.
        pooling: How vectors of tokens become one, instead of the preset's; lasttoken for most decoder-only encoders.
        query_prefix: Text put before queries, instead of the preset's.
        dtype: Precision of the encoder; by default the fastest on this machine.
        trust_remote_code: Run Python code that comes with the encoder, where it cannot be loaded
            without. That code can do whatever you can: read it first.
    """

    encoder: str = BUNDLED
    preset: str | None = None
    pooling: Pooling | None = None
    query_prefix: str | None = None
    dtype: Dtype | None = None
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.preset is not None and self.preset not in PRESETS:
            problem = f"unknown preset {self.preset!r}"
            raise InputError(problem, f"use one of {', '.join(PRESETS)}", "encoder.preset")

    def adapt(self, preset: Preset) -> Preset:
        """The preset with these options' replacements."""
        names = ("pooling", "query_prefix", "passage_prefix")
        options = {name: getattr(self, name, None) for name in names}
        return replace(preset, **{n: value for n, value in options.items() if value is not None})


@dataclass(frozen=True)
class PassageEncoderOptions(EncoderOptions):
    """Which encoder is used, and how it encodes queries and passages.

    Attributes:
        passage_prefix: Text put before passages, instead of the preset's.
    """

    passage_prefix: str | None = None


# cyclopts looks up the types of inherited fields in the subclass's module, so this class is here.
@dataclass(frozen=True)
class QueryEncoderOptions(EncoderOptions):
    """Which encoder embeds queries that are clustered, and how.

    Attributes:
        dtype: Precision of the encoder. Clustering magnifies rounding differences, so the default
            is the most reproducible precision.
    """

    dtype: Dtype | None = "float32"


@dataclass(frozen=True)
class EncoderSpec:
    """All settings that decide an encoder's vectors, and the resources that it may use.

    Attributes:
        name: the encoder as the user named it.
        source: name for another machine with the same files, with absolute paths.
        digest: SHA-256 over the files in that directory that decide a vector.
        dtype: precision of weights and activations; pooling and later steps are computed in fp32.
        code: SHA-256 of the model's Python files, which may run (``engine.machine.model_files``); empty if none may
            run.
        memory: bytes that an actor may use; 0 means the default.
        threads: CPU threads of an actor; 0 means all that torch sees.
        batch_tokens: maximum of padded tokens in a batch; 0 means the device's default.
        server: the server that computes the vectors, in place of a model on this machine.
    """

    name: str
    source: str
    path: str
    digest: str
    text: Preset
    dtype: Dtype
    dimensions: int
    code: str = ""
    memory: int = 0
    threads: int = 0
    batch_tokens: int = 0
    server: ApiSettings | None = None

    @property
    def fingerprint(self) -> str:
        """Hash over all settings that decide the vectors: equal fingerprints and texts give equal vectors."""
        text = self.text
        decisive: list[Any] = [_VERSION, self.digest, self.dtype, text.pooling, text.normalize]
        decisive += [text.query_prefix, text.passage_prefix, text.separator]
        decisive += [text.max_tokens, text.lower_case]
        # Older fingerprints, without these fields, stay.
        decisive += [{"code": self.code}] if self.code else []
        later = [text.include_prompt, text.layers, text.dimensions]
        decisive += [later] if later != [True, (), None] else []
        return hashlib.sha256(json.dumps(decisive).encode()).hexdigest()[:32]

    def described(self) -> dict[str, Any]:
        """The settings that decide the vectors, by name."""
        named = {name: getattr(self, name) for name in ("name", "digest", "dtype", "dimensions")}
        return {**named, "text": asdict(self.text), "fingerprint": self.fingerprint}


def specify(
    options: EncoderOptions, *, memory: int = 0, gpu: bool | None = None, threads: int = 0
) -> EncoderSpec:
    """The specification of an encoder. Nothing is downloaded.

    Args:
        options: which encoder, and how it is used. The default preset is in the model's files, as sentence-transformers
            writes them (``modules.json`` and the files that it names).
        gpu: whether actors will have GPUs, for checking ``memory``; None if this machine encodes.

    Raises:
        InputError: there is no such model here, it has neither safetensors nor a ``pytorch_model.bin`` of plain
            tensors, it is not an encoder, its pooling is unspecified, or preset and files contradict each other.
    """
    name = options.encoder
    for setting in options.server().changed():
        problem = f"`{setting}` with {name}, a model of this machine"
        raise InputError(problem, "leave it out", "encoder.local")
    path, source, size = _locate(name)
    config = model_files.read_config(path, name)
    code = model_files.agreed_code(path, name, trusted=options.trust_remote_code)
    if not any(path.glob("*.safetensors")) and not model_files.pickled_files(path):
        problem = "holds neither *.safetensors nor a pytorch_model.bin"
        raise InputError(problem, "give a directory with the weights", "encoder.weights", path=name)
    if config.get("is_encoder_decoder") or not isinstance(config.get("hidden_size"), int):
        problem = f"a {config.get('model_type')!r} model, which is not an encoder"
        raise InputError(problem, "give a model like BERT", "encoder.kind", path=name)
    text = options.adapt(_preset(path, options))
    width = config["hidden_size"]
    for folder in text.layers:
        width = layer_of(path / folder, width)["out_features"]
    if size and size > width:
        problem = f"gives {width} dimensions, of which {size} cannot be kept"
        raise InputError(problem, "name fewer", "encoder.dimensions", path=name)
    size = size or text.dimensions
    text = replace(text, dimensions=size if size and size < width else None)
    text = replace(text, max_tokens=min(text.max_tokens, _positions(config)))
    dtype, width = options.dtype or device.best_dtype(), text.dimensions or width
    files = digest(path, text.layers)
    spec = EncoderSpec(name, source, str(path), files, text, dtype, width, code, memory, threads)
    weights = device.weight_bytes(model_files.encoder_parameters(path), dtype)
    gpu = device.machine_has_gpu() if gpu is None else gpu
    loading = model_files.encoder_loading_bytes(path, dtype)
    least = device.least_memory(weights, gpu=gpu, loading=loading)
    if memory and memory < least:
        problem = f"`memory` of {memory / 2**20:.0f} MiB cannot hold the encoder in {spec.dtype}"
        raise InputError(problem, f"give at least {device.as_budget(least)}", "settings.memory")
    return spec


def split_name(name: str) -> tuple[str, int | None]:
    """The model of an encoder's name, and the dimensions that it says to keep, as in MODEL@256; None for all."""
    parts = None if Path(name).is_dir() else _KEEPS.fullmatch(name)
    return (parts[1], int(parts[2])) if parts else (name, None)


def _preset(path: Path, options: EncoderOptions) -> Preset:
    """The chosen preset; else the one in the model's files or for the pooling."""
    pooling = options.pooling
    in_files = _from_model_files(path, options.encoder, ignore_pooling=pooling is not None)
    chosen = PRESETS[options.preset] if options.preset else in_files
    if chosen is None:
        if pooling is None:
            problem = "does not specify how its vectors are pooled (it has no modules.json)"
            remedy = f"give a `preset` ({', '.join(PRESETS)})"
            raise InputError(problem, remedy, "encoder.unpooled", path=options.encoder)
        return Preset(pooling, normalize=False)
    if options.preset and in_files and pooling is None and in_files.pooling != chosen.pooling:
        presets = f"the preset {options.preset!r} by {chosen.pooling!r}"
        problem = f"pools by {in_files.pooling!r}, {presets}"
        remedy = "give another `preset`, or `pooling`"
        raise InputError(problem, remedy, "encoder.pooling", path=options.encoder)
    if not options.preset:
        chosen = replace(chosen, normalize=_is_scaled(path, normalized=chosen.normalize))
    # Fields that no preset has.
    added = ("include_prompt", "layers", "dimensions")
    return replace(chosen, **{name: getattr(in_files or chosen, name) for name in added})


def _is_scaled(path: Path, *, normalized: bool) -> bool:
    """Whether vectors have length 1: by a module, or because files (sentence-transformers 3 on) compare by cosine."""
    file = path / "config_sentence_transformers.json"
    similarity = _object(file).get("similarity_fn_name", "dot")
    if similarity in (None, "cosine"):
        return True
    # For vectors of length 1 the nearest have the highest inner product.
    if similarity != "dot" and not (normalized and similarity == "euclidean"):
        problem = f"compares by {quoted(similarity)}, which is not searched"
        remedy = "give an encoder that compares by cosine or dot, or a `preset`"
        raise InputError(problem, remedy, "encoder.similarity", path=file)
    return normalized


def lacks_scaling(spec: EncoderSpec) -> bool:
    """Whether vectors follow the encoder's files, but for their length, which earlier versions left."""
    path, text = Path(spec.path), spec.text
    files = None if text.normalize else _from_model_files(path, spec.name, ignore_pooling=False)
    if files is None or files.pooling != text.pooling or files.max_tokens < text.max_tokens:
        return False
    return _is_scaled(path, normalized=False)


def locate(spec: EncoderSpec) -> EncoderSpec:
    """The specification with the path of its model here; an InputError if that is missing, or has other files."""
    if spec.server:
        return spec
    here = bool(spec.path) and Path(spec.path).is_dir()
    path, _, size = _locate(spec.path if here else spec.source)
    for differ, is_equal in (
        ("files differ", digest(path, spec.text.layers) == spec.digest),
        ("dimensions differ", size in (None, spec.dimensions)),
        ("code differs", not spec.code or model_files.code_digest(path) == spec.code),
    ):
        if not is_equal:
            problem = f"is not the encoder {spec.name!r} that made the vectors: its {differ}"
            remedy = "give the same `encoder`, or build the index again"
            raise InputError(problem, remedy, "encoder.other", path=path)
    return replace(spec, path=str(path))


def digest(path: Path, layers: Sequence[str] = ()) -> str:
    """SHA-256 over the names and contents of a model's files that decide its vectors."""
    files = {file for pattern in _DECISIVE for file in path.glob(pattern)}
    files.update(model_files.pickled_files(path), *(layer_files(path / name) for name in layers))
    return model_files.files_digest(path, files)


def _locate(name: str) -> tuple[Path, str, int | None]:
    """The directory of a model, its name for other machines, and the dimensions to keep by its name."""
    require(f"encoder {name!r}", "local")
    name, size = split_name(name)
    if name == BUNDLED:
        return bundled.encoder_directory(), name, size
    if not name.strip() or "\0" in name:
        remedy = "give bundled, a directory, or an id"
        raise InputError("`encoder` is empty", remedy, "settings.encoder")
    if Path(name).is_dir():
        path = Path(name).resolve()
        return path, str(path), size
    return model_files.from_hub_cache(name, "encoder"), name, size


def _positions(config: dict[str, Any]) -> int:
    """Tokens that a text may have; RoBERTa's positions start after the padding token's id."""
    positions = config.get("max_position_embeddings")
    if not isinstance(positions, int):
        return 2**31
    roberta = config.get("model_type") in {"roberta", "xlm-roberta", "camembert", "mpnet"}
    return positions - (int(config.get("pad_token_id", 1)) + 1 if roberta else 0)


def _from_model_files(path: Path, name: str, *, ignore_pooling: bool) -> Preset | None:
    modules = model_files.read_json(path / "modules.json")
    if modules is None:
        return None
    fault = partial(InputError, code="encoder.modules", path=path / "modules.json")
    if not isinstance(modules, list) or not all(isinstance(m, dict) for m in modules):
        raise fault("is not a list of modules", "fetch it again")
    # The class of a module of sentence-transformers; of another package the whole name, which fits nothing.
    kinds = [re.sub(r"^sentence_transformers\..*\.", "", str(m.get("type"))) for m in modules]
    if not re.fullmatch("Transformer( Pooling)?( Dense)*( Normalize)?", " ".join(kinds)):
        remedy = "give an encoder made of Transformer, Pooling, Dense and Normalize in this order"
        raise fault(f"has the modules {', '.join(kinds)}, which are not supported together", remedy)
    folders = [str(module.get("path", "")) for module in modules]
    file = path / folders[kinds.index("Pooling")] / "config.json" if "Pooling" in kinds else None
    transformer = _object(path / "sentence_bert_config.json")
    prompts = _object(path / "config_sentence_transformers.json")
    prefixes = prompts.get("prompts") or {}
    default = prefixes.get(prompts.get("default_prompt_name")) or ""
    named = [prefixes[kind] for kind in ("document", "passage", "corpus") if kind in prefixes]
    size, tokens = prompts.get("truncate_dim"), _object(path / "tokenizer_config.json")
    length = transformer.get("max_seq_length") or tokens.get("model_max_length")
    return Preset(
        _pooling(file) if file and not ignore_pooling else "mean",
        normalize="Normalize" in kinds,
        query_prefix=prefixes.get("query", default) or "",
        passage_prefix=next(iter(named), default) or "",
        max_tokens=int(min(length, 2**31)) if isinstance(length, (int, float)) else 2**31,
        lower_case=bool(transformer.get("do_lower_case")),
        include_prompt=file is None or _object(file).get("include_prompt") is not False,
        layers=tuple(folders[i] for i, kind in enumerate(kinds) if kind == "Dense"),
        dimensions=size if isinstance(size, int) and size > 0 else None,
    )


def layer_files(folder: Path) -> list[Path]:
    """The weights of a ``Dense`` module: safetensors, else ``pytorch_model.bin``."""
    return sorted(folder.glob("*.safetensors")) or model_files.pickled_files(folder)


def layer_of(folder: Path, width: int) -> dict[str, Any]:
    """The configuration of a ``Dense`` module with ``width`` inputs; an InputError for any other or unsupported one."""
    config = _object(file := folder / "config.json")
    config.setdefault("activation_function", "torch.nn.modules.activation.Tanh")
    ends = {config.get("module_input_name"), config.get("module_output_name")}
    if (
        config.get("in_features") != width
        or not isinstance(config.get("out_features"), int)
        or not str(config["activation_function"]).startswith("torch.nn.")
        or config.get("use_residual")
        or ends - {None, "sentence_embedding"}
    ):
        problem = f"is not a dense layer of a text's {width} numbers with an activation of torch.nn"
        raise InputError(problem, "give another encoder", "encoder.layer", path=file)
    return config


def _pooling(file: Path) -> Pooling:
    config = _object(file)
    named = config.get("pooling_mode")  # of newer versions; older ones write one flag per mode
    start, known = "pooling_mode_", get_args(Pooling)
    on = [key for key, value in config.items() if value is True and key.startswith(start)]
    flags = [key.removeprefix(start) for key in on]
    modes: list[Any] = [
        mode if mode in known else str(mode).removesuffix("_tokens").removesuffix("_token")
        for mode in (named if isinstance(named, list) else [named] if named else flags)
    ]
    if len(modes) == 1 and modes[0] in known:
        return modes[0]
    problem = f"pools by {' and '.join(modes) or 'an unknown method'}"
    remedy = f"give an encoder that pools by one of {', '.join(known)}"
    raise InputError(problem, remedy, "encoder.pooling", path=file)


def _object(file: Path) -> dict[str, Any]:
    return model_files.read_object(file) or {}
