"""Secrets come from the agent's own files, and from nowhere else."""

from pathlib import Path

import pytest

from yardmaster_node_agent.executors.secrets import MAX_SECRET_BYTES, SecretFiles


@pytest.fixture
def secrets(tmp_path: Path) -> SecretFiles:
    root = tmp_path / "secrets"
    (root / "nlp").mkdir(parents=True)
    (root / "nlp" / "hf").write_text("value\n")
    (root / "plain").write_text("two\nlines\n\n")
    (root / "large").write_bytes(b"x" * (MAX_SECRET_BYTES + 1))
    (root / "zero").write_bytes(b"a\0b")
    (tmp_path / "outside").write_text("outside")
    (root / "link").symlink_to(tmp_path / "outside")
    (root / "folder").symlink_to(tmp_path)
    return SecretFiles(root)


def test_a_reference_names_a_file(secrets: SecretFiles) -> None:
    assert secrets.resolve("nlp/hf") == "value"
    assert secrets.resolve("plain") == "two\nlines\n"


@pytest.mark.parametrize(
    "reference",
    ["../outside", "nlp/../../outside", "/etc/passwd", "link", "folder/outside", "nlp", "", ".",
     "none", "nlp/none", "large", "zero", "a/b/c/d/e", "nlp//hf", "nlp/hf\n", "nlp/hf/"],
)  # fmt: skip
def test_other_references_name_no_secret(secrets: SecretFiles, reference: str) -> None:
    assert secrets.resolve(reference) is None


def test_without_a_directory_there_are_no_secrets() -> None:
    assert SecretFiles(None).resolve("nlp/hf") is None
