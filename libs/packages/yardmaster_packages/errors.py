"""The errors of code packages and artifacts.

```
YardmasterError
  PackageError
    ContextUnusable                        the folder cannot be read as a whole
      IgnoreRulesInvalid  PathRefused  ContextChanged  ContextTooLarge
    ArchiveRefused                         the archive is damaged, or an attack
      WrongDigest  WrongSize
    PackageNotFound  PackagesUnavailable   the store
    ArtifactNotFound  ArtifactDamaged  ArtifactsUnavailable
```
"""

from yardmaster_schemas.errors import YardmasterError


class PackageError(YardmasterError):
    """A code package failed: {found}."""

    code = "package"


class ContextUnusable(PackageError):
    """The folder {path} cannot be used as context: {found}."""

    code = "context_unusable"


class IgnoreRulesInvalid(ContextUnusable):
    """Line {line} of {path} is not a rule of gitignore: {found}. Correct or remove the line."""

    code = "ignore_rules_invalid"


class PathRefused(ContextUnusable):
    """{path} cannot be part of a package: {found}. Remove it, or exclude it in .yardignore."""

    code = "path_refused"


class ContextChanged(ContextUnusable):
    """{path} changed while it was read. Submit again when nothing writes to the folder."""

    code = "context_changed"


class ContextTooLarge(ContextUnusable):
    """The folder {path} is too large for a package: {found}. Exclude what the job does not need
    in .yardignore. The largest: {largest}.
    """

    code = "context_too_large"


class ArchiveRefused(PackageError):
    """The package {digest} is refused: {found}. Upload the folder again."""

    code = "archive_refused"


class WrongDigest(ArchiveRefused):
    """The package {digest} is refused: its content has the digest {found}. Upload the folder
    again.
    """

    code = "wrong_digest"


class WrongSize(ArchiveRefused):
    """The package {digest} is refused: {found}. Upload the folder again."""

    code = "wrong_size"


class PackageNotFound(PackageError):
    """Project {project} has no package {digest}. Upload the folder again."""

    code = "package_not_found"


class PackagesUnavailable(PackageError):
    """The packages at {url} cannot be reached: {found}. Try again, or check YARD_PACKAGES."""

    code = "packages_unavailable"


class ArtifactNotFound(PackageError):
    """The store of artifacts has no file {path}."""

    code = "artifact_not_found"


class ArtifactDamaged(PackageError):
    """The stored artifacts are damaged at {path}: {found}."""

    code = "artifact_damaged"


class ArtifactsUnavailable(PackageError):
    """The artifacts at {url} cannot be reached: {found}. Try again, or check YARD_ARTIFACTS."""

    code = "artifacts_unavailable"
