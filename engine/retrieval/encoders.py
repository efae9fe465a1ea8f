"""Choosing an encoder: from its name to its specification, without loading it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from engine.machine import device, model_code, model_files, model_loading
from engine.machine.device import Dtype
from engine.messages.checked import Checked
from engine.messages.errors import InputError
from engine.messages.extras import require
from engine.sources import bundled
from engine.sources.io.json_text import parse_json

Pooling = Literal["mean", "cls"]
BUNDLED = "bundled"
# Raise this when the arithmetic of ``encoder`` changes: existing vectors are then computed again.
_VERSION = 1
# Files whose content decides a vector; model cards, ONNX exports and the like do not.
_DECISIVE = ("*.safetensors", "*.json", "*.txt", "*.model", "*/config.json")


@dataclass(frozen=True)
class Preset:
    """How a family of encoders is meant to be used, as its authors chose.

    Attributes:
        pooling: the mean of the last layer's vectors over all tokens, special tokens included, or
            the vector of the first token.
        normalize: whether vectors are scaled to length 1 (the inner product is then the cosine).
        query_prefix, passage_prefix: text put before queries and before passages.
        separator: text between a passage's title and its text; left out if the title is empty.
        max_tokens: longer texts are truncated; special tokens count.
        lower_case: whether texts are lower-cased first.
    """

    pooling: Pooling
    normalize: bool
    query_prefix: str = ""
    passage_prefix: str = ""
    separator: str = " "
    max_tokens: int = 512
    lower_case: bool = False


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
class EncoderOptions(Checked):
    """Which encoder is used, and how it encodes queries.

    Attributes:
        encoder: A Hugging Face id in the local cache, a directory, or "bundled" (all-MiniLM-L6-v2).
        preset: How the encoder is used: contriever, e5, bge, minilm; mean or cls for any other. By
            default, what the model's sentence-transformers files specify.
        pooling: mean or cls, instead of the preset's.
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
            raise InputError(f"unknown preset {self.preset!r}", f"use one of {', '.join(PRESETS)}")

    def adapt(self, preset: Preset) -> Preset:
        """The preset with what these options replace in it."""
        prefix = preset.query_prefix if self.query_prefix is None else self.query_prefix
        return replace(preset, pooling=self.pooling or preset.pooling, query_prefix=prefix)


@dataclass(frozen=True)
class PassageEncoderOptions(EncoderOptions):
    """Which encoder is used, and how it encodes queries and passages.

    Attributes:
        passage_prefix: Text put before passages, instead of the preset's.
    """

    passage_prefix: str | None = None

    def adapt(self, preset: Preset) -> Preset:
        """The preset with what these options replace in it."""
        prefix = preset.passage_prefix if self.passage_prefix is None else self.passage_prefix
        return replace(super().adapt(preset), passage_prefix=prefix)


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
    """All that decides the vectors of an encoder, and the resources that it may use.

    Attributes:
        name: the encoder as the user named it.
        source: where another machine finds the same files: the name, with paths made absolute.
        path: the local directory of the model.
        digest: SHA-256 over the files in that directory that decide a vector.
        text: see ``Preset``.
        dtype: precision of weights and activations; pooling and later steps are computed in fp32.
        dimensions: length of a vector.
        code: SHA-256 of the Python files of the model, which may run (``engine.machine.model_code``);
            empty where none may.
        memory: bytes that one actor may use; 0 means the default.
        threads: CPU threads of one actor; 0 means all that torch sees.
        batch_tokens: maximum of padded tokens in a batch; 0 means the device's default.
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

    @property
    def fingerprint(self) -> str:
        """Hash of what decides the vectors: equal fingerprints and texts give equal vectors."""
        text = self.text
        decisive = [
            _VERSION,
            self.digest,
            self.dtype,
            text.pooling,
            text.normalize,
            text.query_prefix,
            text.passage_prefix,
            text.separator,
            text.max_tokens,
            text.lower_case,
            *([{"code": self.code}] if self.code else []),
        ]
        return hashlib.sha256(json.dumps(decisive).encode()).hexdigest()[:32]


def specify(
    options: EncoderOptions, *, memory: int = 0, gpu: bool | None = None, threads: int = 0
) -> EncoderSpec:
    """The specification of an encoder. Nothing is downloaded.

    Args:
        options: which encoder, and how it is used. Without a preset, the model's files decide, in
            the form that sentence-transformers writes (``modules.json`` and what it names).
        memory, threads: see ``EncoderSpec``.
        gpu: whether actors will have GPUs, by which ``memory`` is judged; None where this machine encodes.

    Raises:
        InputError: there is no such model here, it has neither safetensors nor a ``pytorch_model.bin`` of
            plain tensors, it is not an encoder, nothing specifies how its vectors are pooled, or preset and files contradict each other.
    """
    name = options.encoder
    path, source = _locate(name)
    config = model_files.read_config(path, name)
    code = model_code.agreed_code(path, name, trusted=options.trust_remote_code)
    if not any(path.glob("*.safetensors")) and not model_files.pickled_files(path):
        raise InputError(
            "holds neither *.safetensors nor a pytorch_model.bin",
            "give a directory with the weights",
            path=name,
        )
    if config.get("is_encoder_decoder") or not isinstance(config.get("hidden_size"), int):
        raise InputError(
            f"a {config.get('model_type')!r} model, which is not an encoder",
            "give a model like BERT",
            path=name,
        )
    text = options.adapt(_preset(path, options))
    spec = EncoderSpec(
        name=name,
        source=source,
        path=str(path),
        digest=digest(path),
        text=replace(text, max_tokens=min(text.max_tokens, _positions(config))),
        dtype=options.dtype or device.best_dtype(),
        dimensions=config["hidden_size"],
        code=code,
        memory=memory,
        threads=threads,
    )
    least = device.least_memory(
        device.weight_bytes(model_loading.parameters(path), spec.dtype),
        gpu=device.machine_has_gpu() if gpu is None else gpu,
        loading=model_loading.loading_bytes(path, spec.dtype),
    )
    if memory and memory < least:
        raise InputError(
            f"`memory` of {memory / 2**20:.0f} MiB cannot hold the encoder in {spec.dtype}",
            f"give at least {device.as_budget(least)}",
        )
    return spec


def _preset(path: Path, options: EncoderOptions) -> Preset:
    """The preset that was chosen; without one, what the model's files or the pooling specify."""
    pooling = options.pooling
    in_files = _from_model_files(path, options.encoder, ignore_pooling=pooling is not None)
    chosen = PRESETS[options.preset] if options.preset else in_files
    if chosen is None:
        if pooling is None:
            raise InputError(
                "does not specify how its vectors are pooled (it has no modules.json)",
                f"give a `preset` ({', '.join(PRESETS)})",
                path=options.encoder,
            )
        return Preset(pooling, normalize=False)
    if options.preset and in_files and pooling is None and in_files.pooling != chosen.pooling:
        raise InputError(
            f"pools by {in_files.pooling!r}, the preset {options.preset!r} by {chosen.pooling!r}",
            "give another `preset`, or `pooling`",
            path=options.encoder,
        )
    return chosen


def locate(spec: EncoderSpec) -> EncoderSpec:
    """The specification with the path of its model on this machine.

    Raises:
        InputError: the model is not on this machine, or its files differ from those specified.
    """
    here = bool(spec.path) and Path(spec.path).is_dir()
    path, _ = _locate(spec.path if here else spec.source)
    if digest(path) != spec.digest:
        raise InputError(
            f"is not the encoder {spec.name!r} that made the vectors: its files differ",
            "give the same `encoder`, or build the index again",
            path=path,
        )
    if spec.code and model_code.code_digest(path) != spec.code:
        raise InputError(
            f"is not the encoder {spec.name!r} that made the vectors: its code differs",
            "give the same `encoder`, or build the index again",
            path=path,
        )
    return replace(spec, path=str(path))


def digest(path: Path) -> str:
    """SHA-256 over the names and contents of those files of a model that decide its vectors."""
    decisive = {file for pattern in _DECISIVE for file in path.glob(pattern)}
    files = sorted(decisive | set(model_files.pickled_files(path)))
    listing = "".join(
        f"{file.relative_to(path).as_posix()} {model_files.file_digest(file)}\n" for file in files
    )
    return hashlib.sha256(listing.encode()).hexdigest()


def _locate(name: str) -> tuple[Path, str]:
    require(f"encoder {name!r}", "local")
    if name == BUNDLED:
        return bundled.encoder_directory(), name
    if not name.strip() or "\0" in name:
        raise InputError("`encoder` is empty", "give bundled, a directory, or an id")
    if Path(name).is_dir():
        path = Path(name).resolve()
        return path, str(path)
    return model_files.from_hub_cache(name, "encoder"), name


def _positions(config: dict[str, Any]) -> int:
    """Tokens that a text may have; RoBERTa's positions start after the padding token's id."""
    positions = config.get("max_position_embeddings")
    if not isinstance(positions, int):
        return 2**31
    roberta = config.get("model_type") in {"roberta", "xlm-roberta", "camembert", "mpnet"}
    return positions - (int(config.get("pad_token_id", 1)) + 1 if roberta else 0)


def _from_model_files(path: Path, name: str, *, ignore_pooling: bool) -> Preset | None:
    """What the files of sentence-transformers specify; None if the model has none."""
    modules = _read_json(path / "modules.json")
    if modules is None:
        return None
    if not isinstance(modules, list) or not all(isinstance(m, dict) for m in modules):
        raise InputError("is not a list of modules", "fetch it again", path=path / "modules.json")
    kinds = {str(m.get("type", "")).rsplit(".", 1)[-1]: m for m in modules}
    if unknown := set(kinds) - {"Transformer", "Pooling", "Normalize"}:
        raise InputError(
            f"has a module {sorted(unknown)[0]}, which is not supported",
            "give an encoder made of a transformer, a pooling and at most a normalization",
            path=path / "modules.json",
        )
    pooling: Pooling = "mean"
    if "Pooling" in kinds and not ignore_pooling:
        pooling = _pooling(path / str(kinds["Pooling"].get("path", "")) / "config.json")
    transformer = _object(path / "sentence_bert_config.json")
    prompts = _object(path / "config_sentence_transformers.json")
    prefixes = prompts.get("prompts") or {}
    default = prefixes.get(prompts.get("default_prompt_name") or "") or ""
    length = transformer.get("max_seq_length") or _object(path / "tokenizer_config.json").get(
        "model_max_length"
    )
    return Preset(
        pooling,
        normalize="Normalize" in kinds,
        query_prefix=prefixes.get("query") or default,
        passage_prefix=prefixes.get("document") or prefixes.get("passage") or default,
        max_tokens=int(min(length, 2**31)) if isinstance(length, (int, float)) else 2**31,
        lower_case=bool(transformer.get("do_lower_case")),
    )


def _pooling(file: Path) -> Pooling:
    config = _object(file)
    named = config.get("pooling_mode")  # of newer versions; older ones write one flag per mode
    modes = (
        {named}
        if isinstance(named, str)
        else {*named}
        if isinstance(named, (list, tuple))
        else set()
    ) or {
        key.removeprefix("pooling_mode_").removesuffix("_tokens").removesuffix("_token")
        for key, value in config.items()
        if key.startswith("pooling_mode_") and value is True
    }
    if modes == {"mean"}:
        return "mean"
    if modes == {"cls"}:
        return "cls"
    raise InputError(
        f"pools by {', '.join(sorted(map(str, modes))) or 'an unknown method'}",
        "give an encoder that pools by the mean or by the first token (cls)",
        path=file,
    )


def _object(file: Path) -> dict[str, Any]:
    value = _read_json(file)
    return value if isinstance(value, dict) else {}


def _read_json(file: Path) -> Any:
    try:
        return parse_json(file.read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, OSError) as error:
        raise InputError(f"cannot be read ({error})", "fetch the model again", path=file) from None
