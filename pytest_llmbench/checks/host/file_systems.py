"""Properties of a file system by the kernel's name for it."""

from __future__ import annotations

from collections.abc import Mapping

_NETWORK = {
    "afs", "beegfs", "ceph", "cifs", "gfs2", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "ocfs2", "orangefs", "panfs",
    "pvfs2", "smb3", "smbfs", "wekafs",
}  # fmt: skip
# These run in user space and are layers over a local disk.
_LOCAL_FUSE = {"fuse.fuse-overlayfs", "fuse.lxcfs", "fuse.squashfuse", "fuse.squashfuse_ll"}
# Who touches a file there gets the server's time, or this machine's own. The clients of other file systems give it
# theirs, and of one that is not known here nobody can say.
_ONE_CLOCK = {"nfs", "nfs4", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"}


def is_network(mount: Mapping[str, str] | None) -> bool:
    """Whether other nodes may have the same file system; what is not known to be so counts as local."""
    kind = kind_of(mount)
    return kind in _NETWORK or (kind.startswith("fuse.") and kind not in _LOCAL_FUSE)


def has_one_clock(mount: Mapping[str, str] | None) -> bool:
    """Whether all who touch a file there get the time of one clock: the server's, or this machine's own."""
    return kind_of(mount) in _ONE_CLOCK


def kind_of(mount: Mapping[str, str] | None) -> str:
    """Such as `nfs4`."""
    return mount["type"] if mount is not None else "unknown"
