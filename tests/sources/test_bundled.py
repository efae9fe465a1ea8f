"""What the packages of the set-up carry."""

from engine.sources import bundled
from tests.expected import refused


def test_bundled_files_are_where_their_packages_are():
    assert bundled.wikipedia_dump().suffix == ".bz2"
    assert bundled.reader_file().suffix == ".gguf"
    assert (bundled.encoder_directory() / "model.safetensors").is_file()
    assert bundled.questions("claims").is_file()


def test_a_missing_package_is_named_with_how_to_install_it(monkeypatch):
    monkeypatch.setattr(bundled.importlib.util, "find_spec", lambda name: None)
    with refused("package.missing"):
        bundled.encoder_directory()
