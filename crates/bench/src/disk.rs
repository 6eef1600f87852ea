//! Whether a directory is on a disk. In memory a commit costs nothing, and every ratio would be wrong.

use std::fs;
use std::path::Path;

const IN_MEMORY: &[&str] = &["tmpfs", "ramfs"];

/// The file system that keeps this directory in memory, if one does. Nobody knows where there is no `/proc`.
pub(crate) fn memory_under(directory: &Path) -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    let kind = kind_of(&directory.canonicalize().ok()?, &mounts)?;
    IN_MEMORY.contains(&kind).then(|| kind.to_owned())
}

/// The kind of the innermost mount; the later of two on the same place hides the earlier one.
fn kind_of<'m>(directory: &Path, mounts: &'m str) -> Option<&'m str> {
    let around = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (place, kind) = (fields.next()?, fields.next()?);
        directory.starts_with(place).then_some((place.len(), kind))
    });
    around.max_by_key(|(depth, _)| *depth).map(|(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
/dev/vda / ext4 rw 0 0
tmpfs /tmp tmpfs rw 0 0
/dev/vdb /tmp/disk xfs rw 0 0
";

    #[test]
    fn the_innermost_mount_counts() {
        let kind = |directory: &str| kind_of(Path::new(directory), MOUNTS);
        assert_eq!(kind("/work"), Some("ext4"));
        assert_eq!(kind("/tmp/bench"), Some("tmpfs"));
        assert_eq!(kind("/tmp/disk/bench"), Some("xfs"));
        assert_eq!(kind("/tmpfile"), Some("ext4"));
    }
}
