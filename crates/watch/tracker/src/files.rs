//! What an application keeps in a file, by the file's name and that of its directory: its log, or its data. Only reports tell of it.

use forebay_block::Content;

/// Longer names are cut there, in bytes.
const NAME_CUT_AT: usize = 31;

/// Text that begins so is a number, or begins with one.
fn is_numbered(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit())
}

/// What a file of this name is known to hold; names may be cut, as the eBPF program has them.
pub(crate) fn content(dir: &str, file: &str) -> Content {
    let begins = |starts: &[&str]| starts.iter().any(|start| file.starts_with(start));
    let ends = |tails: &[&str]| tails.iter().any(|tail| file.ends_with(tail));
    // A snapshot, and a log that is written anew.
    let redis_data = ends(&[".rdb"]) || begins(&["temp-rewriteaof"]);
    let is_log = dir == "pg_wal"
        || ends(&[".aof"]) && !redis_data
        // InnoDB's redo log, MariaDB's and MySQL's binary logs.
        || begins(&["ib_logfile", "#ib_redo", "binlog.0", "mysql-bin.0", "mariadb-bin.0", "mysqld-bin.0"])
        // WiredTiger's; SQLite's and etcd's.
        || begins(&["WiredTigerLog.", "WiredTigerPreplog.", "WiredTigerTmplog."])
        || ends(&["-wal", ".wal"]);
    // PostgreSQL: base/DATABASE/RELATION, also below a tablespace, and what all databases share.
    let relation = (dir == "global" || is_numbered(dir)) && is_numbered(file);
    let is_database = redis_data
        || relation
        || begins(&["ibdata", "undo_0", "#ib_16384"])
        || ends(&[".ibd", ".wt", ".sqlite", ".sqlite3"])
        // MongoDB's names are longer than what is known of them.
        || begins(&["collection-", "index-"]) && file.len() >= NAME_CUT_AT;
    match (is_log, is_database) {
        (true, _) => Content::Log,
        (_, true) => Content::Database,
        _ => Content::Data,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_and_databases_are_known_by_their_names() {
        for (dir, file, is) in [
            ("pg_wal", "000000010000000000000001", Content::Log),
            ("16384", "16401", Content::Database),
            ("5", "2619_fsm", Content::Database),
            ("global", "1262", Content::Database),
            ("global", "pg_control", Content::Data),
            ("appendonlydir", "appendonly.aof.1.incr.aof", Content::Log),
            ("appendonlydir", "appendonly.aof.1.base.rdb", Content::Database),
            ("redis", "temp-rewriteaof-bg-77.aof", Content::Database),
            ("redis", "dump.rdb", Content::Database),
            ("mysql", "ib_logfile0", Content::Log),
            ("#innodb_redo", "#ib_redo7", Content::Log),
            ("mysql", "mariadb-bin.000003", Content::Log),
            ("tpcc", "stock.ibd", Content::Database),
            ("journal", "WiredTigerLog.0000000001", Content::Log),
            ("mongodb", "collection-0--83261903952135713", Content::Database),
            ("mongodb", "sizeStorer.wt", Content::Database),
            ("www", "index-2.html", Content::Data),
            ("home", "letter.txt", Content::Data),
            ("", "", Content::Data),
        ] {
            assert_eq!(content(dir, file), is, "{dir}/{file}");
        }
    }
}
