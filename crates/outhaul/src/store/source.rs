//! The SQL that is part of the crate: migrations, and the functions that every migration re-applies when
//! their text has changed.

/// One step of the schema.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Migration {
    pub(crate) version: i32,
    pub(crate) name: &'static str,
    pub(crate) sql: &'static str,
    /// The oldest version whose binaries still work on the schema after this step.
    pub(crate) serves_from: i32,
}

/// All steps, in order; forward only.
pub(crate) const MIGRATIONS: &[Migration] = &[
    Migration {
        version: 1,
        name: "jobs",
        sql: include_str!("../../migrations/0001_jobs.sql"),
        serves_from: 1,
    },
    Migration {
        version: 2,
        name: "outbox",
        sql: include_str!("../../migrations/0002_outbox.sql"),
        serves_from: 1,
    },
    Migration {
        version: 3,
        name: "isolation",
        sql: include_str!("../../migrations/0003_isolation.sql"),
        serves_from: 1,
    },
    Migration {
        version: 4,
        name: "operations",
        sql: include_str!("../../migrations/0004_operations.sql"),
        serves_from: 1,
    },
];

/// The version this binary needs.
pub(crate) const VERSION: i32 = MIGRATIONS[MIGRATIONS.len() - 1].version;

pub(crate) const BOOTSTRAP: &str = include_str!("../../sql/keep/bootstrap.sql");

/// A file of `sql/` that defines something: its name without the ending, and its text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Function {
    pub(crate) name: &'static str,
    pub(crate) sql: &'static str,
}

macro_rules! sql {
    ($name:literal) => {
        Function { name: $name, sql: include_str!(concat!("../../sql/", $name, ".sql")) }
    };
}

/// Every file, in the order of application: the trigger needs its function, the grants need them all.
pub(crate) const FUNCTIONS: &[Function] = &[
    sql!("call/cancel"),
    sql!("call/cancel_key"),
    sql!("call/enqueue"),
    sql!("call/enqueue_many"),
    sql!("call/event_valid"),
    sql!("call/lane_insert"),
    sql!("call/share_of"),
    sql!("call/job_insert"),
    sql!("call/outbox_insert"),
    sql!("call/publish"),
    sql!("call/publish_many"),
    sql!("call/setting_seconds"),
    sql!("call/take_event_key"),
    sql!("call/take_key"),
    sql!("call/valid"),
    sql!("call/wake"),
    sql!("claim/canary"),
    sql!("claim/advance_lanes"),
    sql!("claim/claim"),
    sql!("claim/claim_governed"),
    sql!("claim/claim_events"),
    sql!("claim/events_due"),
    sql!("claim/fair_lanes"),
    sql!("claim/free_units"),
    sql!("claim/pace_keys"),
    sql!("claim/pair_units"),
    sql!("claim/promote_waiting"),
    sql!("claim/refill_rate"),
    sql!("claim/take_key_units"),
    sql!("claim/take_rate_slots"),
    sql!("claim/claim_subscription"),
    sql!("claim/floors"),
    sql!("claim/lanes"),
    sql!("claim/next_due"),
    sql!("claim/publish_floors"),
    sql!("claim/subscription_due"),
    sql!("settle/checkpoint"),
    sql!("settle/checkpoint_in"),
    sql!("settle/cancel_jobs"),
    sql!("settle/complete"),
    sql!("settle/complete_events"),
    sql!("settle/complete_in"),
    sql!("settle/cool_down"),
    sql!("settle/fail"),
    sql!("settle/fail_events"),
    sql!("settle/hold"),
    sql!("settle/job_ended"),
    sql!("settle/jobs_ended"),
    sql!("settle/project"),
    sql!("settle/snooze"),
    sql!("lease/expired"),
    sql!("lease/expired_events"),
    sql!("lease/expired_subscriptions"),
    sql!("lease/renew"),
    sql!("lease/renew_events"),
    sql!("lease/renew_subscriptions"),
    sql!("lease/take_sweep"),
    sql!("feed/given_back"),
    sql!("feed/history_truncated"),
    sql!("feed/next_event"),
    sql!("feed/park"),
    sql!("feed/read"),
    sql!("feed/register_relay"),
    sql!("feed/sequence"),
    sql!("feed/start_position"),
    sql!("feed/subscribe"),
    sql!("keep/feed_edge"),
    sql!("keep/outbox_edge"),
    sql!("keep/outbox_kept_from"),
    sql!("keep/partitions"),
    sql!("keep/parts"),
    sql!("keep/ranges"),
    sql!("keep/remove_expired"),
    sql!("keep/remove_operations"),
    sql!("keep/schema_state"),
    sql!("keep/upkeep_due"),
    sql!("keep/upkeep_report"),
    sql!("keep/worker_beat"),
    sql!("keep/worker_gone"),
    sql!("read/reconcile_outbox"),
    sql!("read/show_attempts"),
    sql!("read/show_audit"),
    sql!("read/show_dispositions"),
    sql!("read/show_dead"),
    sql!("read/show_dead_groups"),
    sql!("read/show_event"),
    sql!("read/show_event_payload"),
    sql!("read/show_events"),
    sql!("read/queue_settings"),
    sql!("read/show_isolation"),
    sql!("read/show_job"),
    sql!("read/show_jobs"),
    sql!("read/show_notifications"),
    sql!("read/show_operation_items"),
    sql!("read/show_operations"),
    sql!("read/show_outbox"),
    sql!("read/show_parked"),
    sql!("read/show_payload"),
    sql!("read/show_queues"),
    sql!("read/show_set_aside"),
    sql!("read/show_subscriptions"),
    sql!("read/show_upkeep"),
    sql!("read/show_waiting"),
    sql!("read/show_waits"),
    sql!("read/show_workers"),
    sql!("read/tail_events"),
    sql!("act/audit_append"),
    sql!("act/audit_hash"),
    sql!("act/audit_verify"),
    sql!("act/discard_dead"),
    sql!("act/govern"),
    sql!("act/job_filter_valid"),
    sql!("act/known_subscription"),
    sql!("act/operation_create"),
    sql!("act/operation_step"),
    sql!("act/operation_switch"),
    sql!("act/operator_cancel"),
    sql!("act/operator_cancel_key"),
    sql!("act/operator_discard"),
    sql!("act/operator_history"),
    sql!("act/operator_key_limit"),
    sql!("act/operator_pause"),
    sql!("act/operator_queue_set"),
    sql!("act/queue_setting_valid"),
    sql!("act/replay_dead"),
    sql!("act/select_jobs"),
    sql!("act/operator_relay_retry"),
    sql!("act/operator_retry"),
    sql!("act/operator_rotate_history"),
    sql!("act/operator_subscription_drop"),
    sql!("act/operator_subscription_pause"),
    sql!("act/operator_subscription_rewind"),
    sql!("act/operator_subscription_skip"),
    sql!("act/operator_subscription_unpark"),
    sql!("call/job_insert_trigger"),
    sql!("call/lane_insert_trigger"),
    sql!("settle/job_ended_trigger"),
    sql!("call/outbox_insert_trigger"),
    sql!("keep/grants"),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn every_sql_file_is_applied() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("sql");
        let mut found = BTreeSet::new();
        for area in std::fs::read_dir(&root).unwrap() {
            let area = area.unwrap().path();
            for file in std::fs::read_dir(&area).unwrap() {
                let file = file.unwrap().path();
                let stem = file.file_stem().unwrap().to_str().unwrap();
                found.insert(format!("{}/{stem}", area.file_name().unwrap().to_str().unwrap()));
            }
        }
        found.remove("keep/bootstrap");
        let listed: BTreeSet<String> = FUNCTIONS.iter().map(|function| function.name.to_owned()).collect();
        assert_eq!(listed, found);
    }

    #[test]
    fn every_sql_file_has_a_header_and_its_tag() {
        for Function { name, sql } in FUNCTIONS {
            let stem = name.rsplit('/').next().unwrap();
            assert!(sql.starts_with(&format!("-- {stem}: ")), "{name}: the first line says what it is for");
            assert!(sql.contains(&format!("/* outhaul:{stem} */")), "{name}: the body begins with its tag");
            assert!(sql.contains("Locks: ") || sql.contains("locks: "), "{name}: the header names its locks");
            assert!(
                sql.contains("Index: ") || sql.contains("Index, locks") || sql.contains("Locks:"),
                "{name}: the header names its index"
            );
        }
    }

    #[test]
    fn every_definer_function_pins_its_search_path() {
        for Function { name, sql } in FUNCTIONS {
            if sql.contains("security definer") {
                assert!(sql.contains("set search_path from current"), "{name}");
            }
        }
    }

    #[test]
    fn migrations_are_numbered_without_gaps() {
        for (index, migration) in MIGRATIONS.iter().enumerate() {
            assert_eq!(migration.version, index as i32 + 1);
            assert!(migration.serves_from <= migration.version);
        }
    }
}
