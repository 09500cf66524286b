//! The password file, in libpq's format and under libpq's rule that nobody else may read it.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::parts::{Host, Place, default_socket_folder};

/// What the file says for one host; it is read at each call.
pub(super) fn password(file: &Path, host: &Host, database: &str, user: &str) -> Option<String> {
    entry(&read(file)?, [&host_name(host), &host.port.to_string(), database, user])
}

/// The text of a password file; `None`, with a warning where the user should know, when it is not to be used.
fn read(path: &Path) -> Option<String> {
    let mut file = File::open(path).ok()?;
    let meta = file.metadata().ok()?;
    if !meta.is_file() {
        tracing::warn!(file = %path.display(), "the password file is not a plain file and is ignored");
        return None;
    }
    if readable_by_others(&meta) {
        tracing::warn!(
            file = %path.display(),
            "the password file may be read by others and is ignored; run `chmod 0600` on it"
        );
        return None;
    }
    let mut text = String::new();
    match file.read_to_string(&mut text) {
        Ok(_) => Some(text),
        Err(error) => {
            tracing::warn!(file = %path.display(), %error, "the password file cannot be read");
            None
        }
    }
}

#[cfg(unix)]
fn readable_by_others(meta: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::PermissionsExt;
    meta.permissions().mode() & 0o077 != 0
}

#[cfg(not(unix))]
fn readable_by_others(_: &std::fs::Metadata) -> bool {
    false
}

/// The first field of a line; the default socket is called localhost there.
fn host_name(host: &Host) -> String {
    match &host.place {
        Place::Name(name) => name.clone(),
        Place::Socket(folder) if *folder == default_socket_folder() => "localhost".to_owned(),
        Place::Socket(folder) => folder.to_string_lossy().into_owned(),
    }
}

/// The password of the first line `host:port:database:user:password` that matches; `*` matches anything.
fn entry(text: &str, wanted: [&str; 4]) -> Option<String> {
    text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let mut rest = line;
        for wanted in wanted {
            let (field, after) = field_of(rest)?;
            if rest.starts_with("*:") || field == wanted {
                rest = after?;
            } else {
                return None;
            }
        }
        field_of(rest).map(|(password, _)| password).filter(|password| !password.is_empty())
    })
}

/// A field up to the next `:` that has no `\` before it, and the rest of the line.
fn field_of(line: &str) -> Option<(String, Option<&str>)> {
    let mut field = String::new();
    let mut chars = line.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            ':' => return Some((field, Some(&line[at + 1..]))),
            '\\' => field.push(chars.next().map_or('\\', |(_, c)| c)),
            c => field.push(c),
        }
    }
    Some((field, None))
}

#[cfg(test)]
mod tests {
    use super::super::Dsn;
    use super::super::tests::env;
    use super::*;

    #[test]
    fn password_lines_match_like_in_libpq() {
        let text = "# h:1:d:u:comment\n\
                    h:1:d:other:no\n\
                    h\\:x:1:d:u:escaped host\n\
                    h:1:d:u:pass\\:word\\\\:ignored\n\
                    h:1:d:u:second\n\
                    *:*:all:*:everywhere\r\n\
                    *x:1:d:u:no wildcard\n\
                    short:1\n\
                    h:1:empty:u:\n\
                    h:1:empty:*:fallback\n";
        let find = |host, database| entry(text, [host, "1", database, "u"]);
        assert_eq!(find("h", "d").as_deref(), Some("pass:word\\"));
        assert_eq!(find("h:x", "d").as_deref(), Some("escaped host"));
        assert_eq!(find("elsewhere", "all").as_deref(), Some("everywhere"));
        assert_eq!(find("h", "empty").as_deref(), Some("fallback"));
        assert_eq!(find("yx", "d"), None);
        assert_eq!(find("short", "d"), None);
    }

    #[cfg(unix)]
    #[test]
    fn a_password_file_that_others_may_read_is_ignored() {
        use std::os::unix::fs::PermissionsExt;
        let folder = std::env::temp_dir().join(format!("outhaul-dsn-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join(".pgpass");
        std::fs::write(&file, "h:5432:d:u:from file\nlocalhost:5432:d:u:from socket\n").unwrap();
        let home = folder.to_string_lossy().into_owned();
        let home = [("HOME", home.as_str()), ("USER", "u"), ("PGDATABASE", "d")];
        let password = |text| {
            let dsn = Dsn::parse(text, env(&home)).unwrap();
            dsn.password(&dsn.hosts[0])
        };
        for (mode, expected) in
            [(0o600, Some("from file")), (0o640, None), (0o604, None), (0o400, Some("from file"))]
        {
            std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
            assert_eq!(password("host=h").as_deref(), expected, "{mode:o}");
        }
        assert_eq!(password("").as_deref(), Some("from socket"));
        assert_eq!(password("host=h password=given").as_deref(), Some("given"));
        assert_eq!(password("host=h port=1"), None);
        assert_eq!(password("host=h passfile=/nowhere"), None);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
