//! Every statement that this crate sends: a name, its parameters, and how the answer is read.
//!
//! All verbs are functions of the schema, so a statement is a call and its text follows from the
//! catalogue below. Each begins with the tag of its function, by which `pg_stat_activity`, server logs and
//! proxies know it. A test prepares every one against a migrated schema.

use tokio_postgres::types::Type;

use crate::model::SchemaName;

/// A parameter: what is bound, and the expression it becomes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arg {
    Text,
    Texts,
    Int,
    BigInt,
    Ints,
    BigInts,
    SmallInts,
    Bool,
    Bools,
    Uuid,
    Uuids,
    Times,
    /// JSON as text.
    Json,
    /// A UUID as text: what a caller's driver can bind without a feature for UUIDs.
    TextUuid,
    TextUuids,
    /// A point in time as text.
    TextTime,
    TextTimes,
    /// Numbers as text, likewise.
    TextInts,
    /// Milliseconds as an interval.
    Millis,
    /// When a job is due, as text: a time, `+milliseconds` from now, or NULL.
    Due,
    Dues,
}

impl Arg {
    fn bound_as(self) -> Type {
        match self {
            Arg::Text | Arg::Json | Arg::TextUuid | Arg::TextTime | Arg::Due => Type::TEXT,
            Arg::Texts | Arg::TextUuids | Arg::TextTimes | Arg::TextInts | Arg::Dues => Type::TEXT_ARRAY,
            Arg::Int => Type::INT4,
            Arg::BigInt => Type::INT8,
            Arg::Ints => Type::INT4_ARRAY,
            Arg::BigInts => Type::INT8_ARRAY,
            Arg::SmallInts => Type::INT2_ARRAY,
            Arg::Bool => Type::BOOL,
            Arg::Bools => Type::BOOL_ARRAY,
            Arg::Uuid => Type::UUID,
            Arg::Uuids => Type::UUID_ARRAY,
            Arg::Times => Type::TIMESTAMPTZ_ARRAY,
            Arg::Millis => Type::INT8,
        }
    }

    fn expression(self, n: usize) -> String {
        match self {
            Arg::Json => format!("${n}::text::jsonb"),
            Arg::TextUuid => format!("${n}::text::uuid"),
            Arg::TextUuids => format!("${n}::text[]::uuid[]"),
            Arg::TextTime => format!("${n}::text::timestamptz"),
            Arg::TextTimes => format!("${n}::text[]::timestamptz[]"),
            Arg::TextInts => format!("${n}::text[]::integer[]"),
            Arg::Millis => format!("${n}::bigint * interval '1 millisecond'"),
            Arg::Due => due(&format!("${n}::text")),
            Arg::Dues => format!(
                "(select array_agg({} order by u.o) from unnest(${n}::text[]) with ordinality u(d, o))",
                due("u.d")
            ),
            _ => format!("${n}"),
        }
    }
}

fn due(text: &str) -> String {
    format!(
        "case when {text} like '+%' then clock_timestamp() + substr({text}, 2)::bigint * interval '1 millisecond' \
         else {text}::timestamptz end"
    )
}

/// How a call's answer is selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The columns of a table.
    Rows,
    /// One value, or nothing of interest.
    Value,
    /// One value as text.
    Text,
    /// The elements of an array as rows of text, in order.
    Texts,
}

/// One statement of the catalogue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Statement {
    pub(crate) name: &'static str,
    pub(crate) args: &'static [Arg],
    pub(crate) answer: Answer,
}

impl Statement {
    const fn rows(name: &'static str, args: &'static [Arg]) -> Statement {
        Statement { name, args, answer: Answer::Rows }
    }

    const fn value(name: &'static str, args: &'static [Arg]) -> Statement {
        Statement { name, args, answer: Answer::Value }
    }

    /// The text to send. The schema's name is the only part that varies, and cannot need escaping.
    pub(crate) fn text(&self, schema: &SchemaName) -> String {
        let args: Vec<String> = self.args.iter().enumerate().map(|(i, arg)| arg.expression(i + 1)).collect();
        let call = format!("{}.{}({})", schema.quoted(), self.name, args.join(", "));
        match self.answer {
            Answer::Rows => format!("/* outhaul:{} */ select * from {call}", self.name),
            Answer::Value => format!("/* outhaul:{} */ select {call}", self.name),
            Answer::Text => format!("/* outhaul:{} */ select {call}::text", self.name),
            Answer::Texts => format!(
                "/* outhaul:{} */ select u.v::text from unnest({call}) with ordinality u(v, o) order by u.o",
                self.name
            ),
        }
    }

    /// The types of the parameters, in order.
    pub(crate) fn types(&self) -> Vec<Type> {
        self.args.iter().map(|arg| arg.bound_as()).collect()
    }
}

use Arg::{
    BigInt, BigInts, Bool, Bools, Due, Dues, Int, Ints, Json, Millis, SmallInts, Text, TextInts, TextTime,
    TextTimes, TextUuid, TextUuids, Texts, Times, Uuid, Uuids,
};

/// (queue, job_type, payload, id, key, organization, priority, run_at, max_attempts, timeout, traceparent, notify,
/// ordering_key, limit_key, rate_key)
pub(crate) const ENQUEUE: Statement = Statement {
    name: "enqueue",
    args: &[Text, Text, Json, TextUuid, Text, TextUuid, Int, Due, Int, Millis, Text, Bool, Text, Text, Text],
    answer: Answer::Text,
};
/// (queue, job_type, payloads, ids, keys, organizations, run_ats, priority, max_attempts, timeout, traceparent, notify,
/// ordering_keys, limit_keys, rate_keys)
pub(crate) const ENQUEUE_MANY: Statement = Statement {
    name: "enqueue_many",
    args: &[
        Text, Text, Texts, TextUuids, Texts, TextUuids, Dues, Int, Int, Millis, Text, Bool, Texts, Texts,
        Texts,
    ],
    answer: Answer::Texts,
};
/// (id, reason)
pub(crate) const CANCEL: Statement =
    Statement { name: "cancel", args: &[TextUuid, Text], answer: Answer::Text };
/// (job_type, key, organization, reason)
pub(crate) const CANCEL_KEY: Statement =
    Statement { name: "cancel_key", args: &[Text, Text, TextUuid, Text], answer: Answer::Text };
/// (event_type, aggregate_type, aggregate_id, payload, id, schema_version, occurred_at, available_at, partition_key,
/// organization, traceparent, key, notify)
pub(crate) const PUBLISH: Statement = Statement {
    name: "publish",
    args: &[Text, Text, TextUuid, Json, TextUuid, Int, TextTime, TextTime, Text, TextUuid, Text, Text, Bool],
    answer: Answer::Text,
};
/// (event_types, aggregate_types, aggregate_ids, payloads, ids, schema_versions, occurred_ats, available_ats,
/// partition_keys, organizations, traceparents, keys, notify)
pub(crate) const PUBLISH_MANY: Statement = Statement {
    name: "publish_many",
    args: &[
        Texts, Texts, TextUuids, Texts, TextUuids, TextInts, TextTimes, TextTimes, Texts, TextUuids, Texts,
        Texts, Bool,
    ],
    answer: Answer::Texts,
};
/// (id, lease_token, claim_no, history)
pub(crate) const COMPLETE_IN: Statement =
    Statement { name: "complete_in", args: &[TextUuid, TextUuid, Int, Text], answer: Answer::Text };

/// (id, lease_token, claim_no, position, unparked, after)
pub(crate) const CHECKPOINT_IN: Statement = Statement {
    name: "checkpoint_in",
    args: &[TextUuid, TextUuid, Int, BigInt, Bool, BigInt],
    answer: Answer::Text,
};

/// (n)
pub(crate) const SEQUENCE: Statement = Statement::value("sequence", &[Int]);
/// (name, start, event_types, aggregate_types, policy, gone_after, max_attempts)
pub(crate) const SUBSCRIBE: Statement =
    Statement::value("subscribe", &[Text, Text, Texts, Texts, Text, Millis, Int]);
/// (name, n, worker, lease)
pub(crate) const CLAIM_SUBSCRIPTION: Statement =
    Statement::rows("claim_subscription", &[Text, Int, Uuid, Millis]);
/// (name)
pub(crate) const SUBSCRIPTION_DUE: Statement = Statement::value("subscription_due", &[Text]);
/// (ids, lease_tokens, claim_nos, positions, unparked, committed)
pub(crate) const CHECKPOINT: Statement =
    Statement::rows("checkpoint", &[Uuids, Uuids, Ints, BigInts, BigInts, BigInts]);
/// (id, lease_token, claim_no, position, unparked, after, ids, queues, job_types, payloads, keys, organizations, priorities,
/// run_ats, max_attempts, timeouts_ms, traceparents, source_event_ids, ordering_keys, limit_keys, rate_keys)
pub(crate) const PROJECT: Statement = Statement::value(
    "project",
    &[
        Uuid, Uuid, Int, BigInt, Bool, BigInt, Uuids, Texts, Texts, Texts, Texts, Uuids, Ints, Dues, Ints,
        BigInts, Texts, Uuids, Texts, Texts, Texts,
    ],
);
/// (ids, lease_tokens, claim_nos, verdicts, delays_ms, classes, codes, summaries, handled, failed, unparked, expired_only)
pub(crate) const HOLD: Statement = Statement::rows(
    "hold",
    &[Uuids, Uuids, Ints, Texts, BigInts, Texts, Texts, Texts, BigInts, BigInts, Bools, Bool],
);
/// (ids, lease_tokens, lease)
pub(crate) const RENEW_SUBSCRIPTIONS: Statement =
    Statement::rows("renew_subscriptions", &[Uuids, Uuids, Millis]);
/// (n)
pub(crate) const EXPIRED_SUBSCRIPTIONS: Statement = Statement::rows("expired_subscriptions", &[Int]);

/// (start, max_attempts)
pub(crate) const REGISTER_RELAY: Statement = Statement::value("register_relay", &[Text, Int]);
/// (n, worker, lease)
pub(crate) const CLAIM_EVENTS: Statement = Statement::rows("claim_events", &[Int, Uuid, Millis]);
/// ()
pub(crate) const EVENTS_DUE: Statement = Statement::value("events_due", &[]);
/// (seqs, ats, lease_tokens, claim_nos)
pub(crate) const COMPLETE_EVENTS: Statement =
    Statement::rows("complete_events", &[BigInts, Times, Uuids, Ints]);
/// (seqs, ats, lease_tokens, claim_nos, verdicts, delays_ms, classes, codes, summaries, expired_only)
pub(crate) const FAIL_EVENTS: Statement =
    Statement::rows("fail_events", &[BigInts, Times, Uuids, Ints, Texts, BigInts, Texts, Texts, Texts, Bool]);
/// (seqs, ats, lease_tokens, lease)
pub(crate) const RENEW_EVENTS: Statement = Statement::rows("renew_events", &[BigInts, Times, Uuids, Millis]);
/// (n)
pub(crate) const EXPIRED_EVENTS: Statement = Statement::rows("expired_events", &[Int]);

/// (queue, n, worker, lease, priorities, shares, run_ats, behind_ms, each, discover, skip_types, tell, after_share)
pub(crate) const CLAIM: Statement = Statement::rows(
    "claim",
    &[Text, Int, Uuid, Millis, SmallInts, Ints, Times, BigInts, Int, Bool, Texts, Bool, Int],
);
/// (queue)
pub(crate) const PROMOTE_WAITING: Statement = Statement::value("promote_waiting", &[Text]);
/// (channel)
pub(crate) const CANARY: Statement = Statement::value("canary", &[Text]);
/// (queue, priorities, shares)
pub(crate) const NEXT_DUE: Statement = Statement::value("next_due", &[Text, SmallInts, Ints]);
/// (queue)
pub(crate) const FLOORS: Statement = Statement::rows("floors", &[Text]);
/// (queue, priorities, shares, run_ats, behind_ms)
pub(crate) const PUBLISH_FLOORS: Statement =
    Statement::value("publish_floors", &[Text, SmallInts, Ints, Times, BigInts]);

/// (ids, lease_tokens, claim_nos, history)
pub(crate) const COMPLETE: Statement = Statement::rows("complete", &[Uuids, Uuids, Ints, Text]);
/// (ids, lease_tokens, claim_nos, verdicts, delays_ms, classes, codes, summaries, expired_only)
pub(crate) const FAIL: Statement =
    Statement::rows("fail", &[Uuids, Uuids, Ints, Texts, BigInts, Texts, Texts, Texts, Bool]);

/// (ids, lease_tokens, lease)
pub(crate) const RENEW: Statement = Statement::rows("renew", &[Uuids, Uuids, Millis]);
/// (queue, n, priorities, shares, run_ats, behind_ms)
pub(crate) const EXPIRED: Statement =
    Statement::rows("expired", &[Text, Int, SmallInts, Ints, Times, BigInts]);
/// (queue, every)
pub(crate) const TAKE_SWEEP: Statement = Statement::value("take_sweep", &[Text, Millis]);

/// (id, host, pid, version, schema_version, queues, listener_pid, listener_state, running, stopping, role)
pub(crate) const WORKER_BEAT: Statement =
    Statement::value("worker_beat", &[Uuid, Text, Int, Text, Int, Json, Int, Text, Int, Bool, Text]);
/// (id)
pub(crate) const WORKER_GONE: Statement = Statement::value("worker_gone", &[Uuid]);
/// (n)
pub(crate) const REMOVE_EXPIRED: Statement = Statement::rows("remove_expired", &[Int]);
/// (n)
pub(crate) const REMOVE_OPERATIONS: Statement = Statement::value("remove_operations", &[Int]);
/// (name)
pub(crate) const OPERATION_STEP: Statement = Statement::rows("operation_step", &[Text]);
/// (task, every)
pub(crate) const UPKEEP_DUE: Statement = Statement::value("upkeep_due", &[Text, Millis]);
/// (task, duration_ms, findings, error)
pub(crate) const UPKEEP_REPORT: Statement = Statement::value("upkeep_report", &[Text, BigInt, Json, Text]);
/// ()
pub(crate) const RANGES: Statement = Statement::rows("ranges", &[]);
/// ()
pub(crate) const SCHEMA_STATE: Statement = Statement::rows("schema_state", &[]);

/// (cap)
pub(crate) const SHOW_QUEUES: Statement = Statement::rows("show_queues", &[Int]);
/// (queue, cap)
pub(crate) const SHOW_ISOLATION: Statement = Statement::rows("show_isolation", &[Text, Int]);
/// (queue, cap, n)
pub(crate) const SHOW_WAITING: Statement = Statement::rows("show_waiting", &[Text, Int, Int]);
/// (id)
pub(crate) const SHOW_WAITS: Statement = Statement::rows("show_waits", &[Uuid]);
/// (statuses, queue, job_type, before, n)
pub(crate) const SHOW_JOBS: Statement = Statement::rows("show_jobs", &[Texts, Text, Text, Uuid, Int]);
/// (filter, before_at, before_id, n)
pub(crate) const SHOW_DEAD: Statement = Statement::rows("show_dead", &[Json, TextTime, Uuid, Int]);
/// (filter, n)
pub(crate) const SHOW_DEAD_GROUPS: Statement = Statement::rows("show_dead_groups", &[Json, Int]);
/// (operation, n)
pub(crate) const SHOW_OPERATIONS: Statement = Statement::rows("show_operations", &[Text, Int]);
/// (name, after, with_outcome, most)
pub(crate) const SHOW_OPERATION_ITEMS: Statement =
    Statement::rows("show_operation_items", &[Text, BigInt, Text, Int]);
/// (id)
pub(crate) const SHOW_JOB: Statement = Statement::rows("show_job", &[Uuid]);
/// (id)
pub(crate) const SHOW_PAYLOAD: Statement = Statement::value("show_payload", &[Uuid]);
/// (job_id)
pub(crate) const SHOW_ATTEMPTS: Statement = Statement::rows("show_attempts", &[Uuid]);
/// ()
pub(crate) const SHOW_WORKERS: Statement = Statement::rows("show_workers", &[]);
/// ()
pub(crate) const SHOW_UPKEEP: Statement = Statement::rows("show_upkeep", &[]);
/// ()
pub(crate) const SHOW_NOTIFICATIONS: Statement = Statement::value("show_notifications", &[]);
/// (before, n)
pub(crate) const SHOW_AUDIT: Statement = Statement::rows("show_audit", &[BigInt, Int]);
/// (n)
pub(crate) const AUDIT_VERIFY: Statement = Statement::rows("audit_verify", &[Int]);

/// (subscription)
pub(crate) const SHOW_SUBSCRIPTIONS: Statement = Statement::rows("show_subscriptions", &[Text]);
/// (name, before, n)
pub(crate) const SHOW_DISPOSITIONS: Statement = Statement::rows("show_dispositions", &[Uuid]);

pub(crate) const SHOW_SET_ASIDE: Statement = Statement::rows("show_set_aside", &[Text]);

pub(crate) const SHOW_PARKED: Statement = Statement::rows("show_parked", &[Text, BigInt, Int]);
/// (cap)
pub(crate) const SHOW_OUTBOX: Statement = Statement::rows("show_outbox", &[Int]);
/// (before, n, event_type, aggregate_type, aggregate_id, only_parked)
pub(crate) const SHOW_EVENTS: Statement =
    Statement::rows("show_events", &[BigInt, Int, Text, Text, Uuid, Bool]);
/// (id)
pub(crate) const SHOW_EVENT: Statement = Statement::rows("show_event", &[Uuid]);
/// (id)
pub(crate) const SHOW_EVENT_PAYLOAD: Statement = Statement::value("show_event_payload", &[Uuid]);
/// (start, n, event_types)
pub(crate) const TAIL_EVENTS: Statement = Statement::rows("tail_events", &[Text, Int, Texts]);
/// (n)
pub(crate) const RECONCILE_OUTBOX: Statement = Statement::rows("reconcile_outbox", &[Int]);

/// (id, reason)
pub(crate) const OPERATOR_CANCEL: Statement = Statement::value("operator_cancel", &[Uuid, Text]);
/// (job_type, key, organization, reason)
pub(crate) const OPERATOR_CANCEL_KEY: Statement =
    Statement::value("operator_cancel_key", &[Text, Text, Uuid, Text]);
/// (id, reason)
pub(crate) const OPERATOR_DISCARD: Statement = Statement::value("operator_discard", &[Uuid, Text]);
/// (name, kind, filter, per_second, reason)
pub(crate) const OPERATION_CREATE: Statement =
    Statement::value("operation_create", &[Text, Text, Json, Int, Text]);
/// (name, action, reason)
pub(crate) const OPERATION_SWITCH: Statement = Statement::value("operation_switch", &[Text, Text, Text]);
/// (id, reason)
pub(crate) const OPERATOR_RETRY: Statement = Statement::value("operator_retry", &[Uuid, Text]);
/// (queue, paused, reason)
pub(crate) const OPERATOR_PAUSE: Statement = Statement::value("operator_pause", &[Text, Bool, Text]);
/// (queue, history)
pub(crate) const OPERATOR_HISTORY: Statement = Statement::value("operator_history", &[Text, Text]);
/// (queue, settings, reason)
pub(crate) const OPERATOR_QUEUE_SET: Statement =
    Statement { name: "operator_queue_set", args: &[Text, Json, Text], answer: Answer::Text };
/// (queue, limit_key, max_running, reason)
pub(crate) const OPERATOR_KEY_LIMIT: Statement =
    Statement::value("operator_key_limit", &[Text, Text, Int, Text]);

/// (name, paused, reason)
pub(crate) const OPERATOR_SUBSCRIPTION_PAUSE: Statement =
    Statement::value("operator_subscription_pause", &[Text, Bool, Text]);
/// (name, start, reason)
pub(crate) const OPERATOR_SUBSCRIPTION_REWIND: Statement =
    Statement::value("operator_subscription_rewind", &[Text, Text, Text]);
/// (name, position, reason)
pub(crate) const OPERATOR_SUBSCRIPTION_SKIP: Statement =
    Statement::value("operator_subscription_skip", &[Text, BigInt, Text]);
/// (name, position, reason)
pub(crate) const OPERATOR_SUBSCRIPTION_UNPARK: Statement =
    Statement::value("operator_subscription_unpark", &[Text, BigInt, Text]);
/// (name, reason)
pub(crate) const OPERATOR_SUBSCRIPTION_DROP: Statement =
    Statement::value("operator_subscription_drop", &[Text, Text]);
/// (id, reason)
pub(crate) const OPERATOR_RELAY_RETRY: Statement = Statement::value("operator_relay_retry", &[Uuid, Text]);
/// (reason)
pub(crate) const OPERATOR_ROTATE_HISTORY: Statement = Statement::value("operator_rotate_history", &[Text]);

/// Every statement, for the test that prepares them.
#[cfg(test)]
pub(crate) const CATALOGUE: &[&Statement] = &[
    &ENQUEUE,
    &ENQUEUE_MANY,
    &CANCEL,
    &CANCEL_KEY,
    &PUBLISH,
    &PUBLISH_MANY,
    &COMPLETE_IN,
    &CHECKPOINT_IN,
    &SEQUENCE,
    &SUBSCRIBE,
    &CLAIM_SUBSCRIPTION,
    &SUBSCRIPTION_DUE,
    &CHECKPOINT,
    &PROJECT,
    &HOLD,
    &RENEW_SUBSCRIPTIONS,
    &EXPIRED_SUBSCRIPTIONS,
    &REGISTER_RELAY,
    &CLAIM_EVENTS,
    &EVENTS_DUE,
    &COMPLETE_EVENTS,
    &FAIL_EVENTS,
    &RENEW_EVENTS,
    &EXPIRED_EVENTS,
    &CLAIM,
    &PROMOTE_WAITING,
    &CANARY,
    &NEXT_DUE,
    &FLOORS,
    &PUBLISH_FLOORS,
    &COMPLETE,
    &FAIL,
    &RENEW,
    &EXPIRED,
    &TAKE_SWEEP,
    &WORKER_BEAT,
    &WORKER_GONE,
    &REMOVE_EXPIRED,
    &REMOVE_OPERATIONS,
    &OPERATION_STEP,
    &UPKEEP_DUE,
    &UPKEEP_REPORT,
    &RANGES,
    &SCHEMA_STATE,
    &SHOW_QUEUES,
    &SHOW_ISOLATION,
    &SHOW_WAITING,
    &SHOW_WAITS,
    &SHOW_JOBS,
    &SHOW_DEAD,
    &SHOW_DEAD_GROUPS,
    &SHOW_OPERATIONS,
    &SHOW_OPERATION_ITEMS,
    &SHOW_JOB,
    &SHOW_PAYLOAD,
    &SHOW_ATTEMPTS,
    &SHOW_WORKERS,
    &SHOW_UPKEEP,
    &SHOW_NOTIFICATIONS,
    &SHOW_AUDIT,
    &AUDIT_VERIFY,
    &SHOW_SUBSCRIPTIONS,
    &SHOW_PARKED,
    &SHOW_DISPOSITIONS,
    &SHOW_SET_ASIDE,
    &SHOW_OUTBOX,
    &SHOW_EVENTS,
    &SHOW_EVENT,
    &SHOW_EVENT_PAYLOAD,
    &TAIL_EVENTS,
    &RECONCILE_OUTBOX,
    &OPERATOR_CANCEL,
    &OPERATOR_CANCEL_KEY,
    &OPERATOR_DISCARD,
    &OPERATION_CREATE,
    &OPERATION_SWITCH,
    &OPERATOR_RETRY,
    &OPERATOR_PAUSE,
    &OPERATOR_HISTORY,
    &OPERATOR_QUEUE_SET,
    &OPERATOR_KEY_LIMIT,
    &OPERATOR_SUBSCRIPTION_PAUSE,
    &OPERATOR_SUBSCRIPTION_REWIND,
    &OPERATOR_SUBSCRIPTION_SKIP,
    &OPERATOR_SUBSCRIPTION_UNPARK,
    &OPERATOR_SUBSCRIPTION_DROP,
    &OPERATOR_RELAY_RETRY,
    &OPERATOR_ROTATE_HISTORY,
];

#[cfg(test)]
mod tests {
    use outhaul_local::TestServer;
    use tokio_postgres::NoTls;
    use tokio_postgres::types::Type;

    use super::*;
    use crate::store::migrate::{self, MigrateOptions};

    /// The columns of an answer as the code that sends the statement reads them.
    fn read_as(name: &str) -> Vec<Type> {
        const ID: Type = Type::UUID;
        const TEXT: Type = Type::TEXT;
        const INT: Type = Type::INT4;
        const BIG: Type = Type::INT8;
        const BOOL: Type = Type::BOOL;
        const TIME: Type = Type::TIMESTAMPTZ;
        const TEXTS: Type = Type::TEXT_ARRAY;
        let event = [BIG, ID, TEXT, TEXT, ID, INT, TIME, TIME, BIG, TEXT];
        let parked = [BIG, ID, TEXT, TEXT, ID, TIME, TEXT, INT, TEXT, TEXT, TEXT, TIME];
        let job = [ID, ID, TEXT, TEXT, TEXT, INT, TIME, INT, INT, TIME, TEXT, TEXT, TEXT, TIME, TIME];
        match name {
            "enqueue" | "enqueue_many" | "cancel" | "cancel_key" | "publish" | "publish_many"
            | "complete_in" | "checkpoint_in" | "operator_queue_set" => {
                vec![TEXT]
            }
            "sequence" => vec![INT],
            "subscribe" => vec![ID],
            "claim_subscription" => vec![
                ID, ID, INT, INT, INT, TEXT, BIG, BOOL, BIG, BIG, TIME, ID, ID, TEXT, ID, TEXT, INT, TEXT,
                TIME, TEXT, TEXT,
            ],
            "claim_events" => {
                vec![BIG, TIME, ID, INT, INT, INT, ID, ID, TEXT, ID, TEXT, INT, TEXT, TIME, TIME, TEXT, TEXT]
            }
            "checkpoint" | "hold" | "renew_subscriptions" => vec![ID, TEXT],
            "complete_events" | "fail_events" | "renew_events" => vec![BIG, TEXT],
            "expired_subscriptions" => vec![ID, ID, INT, INT, INT, TEXT, TEXT, ID, BIG],
            "expired_events" => vec![BIG, TIME, ID, INT, INT, INT, TEXT, TEXT, BIG],
            "subscription_due" | "events_due" | "project" => vec![BIG],
            "register_relay" => vec![BOOL],
            "claim" => vec![
                ID,
                ID,
                TEXT,
                TEXT,
                INT,
                INT,
                INT,
                Type::INT2,
                INT,
                TIME,
                TIME,
                ID,
                BIG,
                TEXT,
                TEXT,
                TIME,
            ],
            "floors" => vec![Type::INT2_ARRAY, Type::INT4_ARRAY, Type::TIMESTAMPTZ_ARRAY],
            "next_due" | "promote_waiting" | "remove_operations" | "operation_create" => vec![BIG],
            "operation_step" => vec![TEXT, TEXT, BIG, BIG, BIG],
            "show_dead" => {
                vec![ID, ID, TEXT, TEXT, INT, INT, INT, TEXT, TEXT, TEXT, TEXT, TEXT, TIME, TIME]
            }
            "show_dead_groups" => vec![TEXT, TEXT, TEXT, BIG, TIME, TIME, ID, TEXT],
            "show_operations" => vec![
                ID, TEXT, TEXT, TEXT, TEXT, INT, BIG, BIG, BIG, TEXT, TEXT, TIME, TIME, TIME, TIME, TEXT,
                TEXT, TEXT,
            ],
            "show_operation_items" => vec![BIG, ID, TEXT],
            "complete" | "fail" => vec![ID, TEXT],
            "renew" => vec![ID, TEXT, BOOL],
            "expired" => vec![ID, ID, INT, INT, INT, TEXT, ID, BIG],
            "take_sweep" | "upkeep_due" | "operator_pause" | "operator_subscription_pause" => vec![BOOL],
            "canary" | "publish_floors" | "worker_beat" | "worker_gone" | "upkeep_report"
            | "operator_history" | "operator_key_limit" => {
                vec![Type::VOID]
            }
            "remove_expired" => vec![BIG, BIG, BIG],
            "ranges" => vec![TEXT, TEXT, BOOL, BIG, BIG, BOOL, BIG, INT, BIG, BIG, BOOL, BOOL],
            "schema_state" => vec![INT, INT],
            "show_queues" => vec![TEXT, BIG, BIG, BIG, BIG, BIG, BOOL, BIG, BIG, BOOL, TEXT, TEXT, BIG, BIG],
            "show_isolation" => vec![TEXT, TEXT, BIG, BIG, BIG, BIG, BOOL, BIG, BIG, BIG, BIG, TEXT],
            "show_waiting" => vec![TEXT, TEXT, BIG, ID, TEXT, BIG, INT, TIME],
            "show_waits" => vec![TEXT, TEXT, ID, TEXT, BIG, BIG, INT, TIME],
            "show_jobs" => job.to_vec(),
            "show_job" => [&job[..], &[INT, TIME, TEXT, TEXT, BIG]].concat(),
            "show_payload"
            | "show_event_payload"
            | "operator_cancel"
            | "operator_retry"
            | "operator_cancel_key"
            | "operator_discard"
            | "operation_switch"
            | "operator_subscription_unpark"
            | "operator_relay_retry" => vec![TEXT],
            "show_subscriptions" => vec![
                TEXT, ID, BIG, BIG, BIG, BIG, TEXT, TEXTS, TEXTS, INT, INT, BIG, TIME, ID, TIME, TIME, TIME,
                TIME, TEXT, TEXT, TEXT, TEXT, BIG, TEXT, BIG, BIG,
            ],
            "show_parked" => parked.to_vec(),
            "show_dispositions" => [&[TEXT], &parked[..]].concat(),
            "show_set_aside" => vec![BIG, BIG, BIG],
            "show_outbox" => vec![BIG, ID, BIG, BIG, TIME, BIG, BIG, BIG, BIG, BOOL],
            "show_events" => event.to_vec(),
            "show_event" => [&event[..], &[ID, TEXT, TEXT, TIME, INT, TIME, TEXT]].concat(),
            "tail_events" => [&[BIG], &event[..]].concat(),
            "reconcile_outbox" => vec![TEXT, BIG, BIG, TEXT, TEXT],
            "operator_subscription_rewind" | "operator_subscription_skip" | "operator_subscription_drop" => {
                vec![BIG]
            }
            "operator_rotate_history" => vec![ID],
            "show_attempts" => vec![INT, INT, ID, TIME, TIME, TEXT, TEXT, TEXT, TEXT],
            "show_workers" => {
                vec![ID, TEXT, INT, TEXT, INT, TEXT, TIME, TIME, BIG, TIME, INT, TEXT, INT]
            }
            "show_upkeep" => vec![TEXT, TIME, BIG, TEXT, TEXT],
            "show_notifications" => vec![Type::FLOAT8],
            "show_audit" => vec![BIG, TIME, TEXT, TEXT, TEXT, TEXT, TEXT],
            "audit_verify" => vec![BIG, TEXT],
            other => panic!("{other} has no line here"),
        }
    }

    /// A statement that is sent with types of its own never asks the server for them, so a change of a
    /// function's signature would show only when it is called.
    #[tokio::test]
    async fn every_statement_fits_its_function() {
        let database = TestServer::shared().await.unwrap().empty_database().await.unwrap();
        let (client, connection) = tokio_postgres::connect(&database.url(), NoTls).await.unwrap();
        tokio::spawn(connection);
        // A schema whose name shows that it is quoted.
        let schema = SchemaName::new("select").unwrap();
        let options = MigrateOptions { schema: schema.clone(), ..MigrateOptions::default() };
        migrate::migrate(&client, &options).await.unwrap();
        for statement in CATALOGUE {
            let text = statement.text(&schema);
            let prepared = client.prepare(&text).await.unwrap_or_else(|error| panic!("{text}: {error:?}"));
            assert_eq!(prepared.params(), statement.types(), "parameters of {}", statement.name);
            let columns: Vec<Type> = prepared.columns().iter().map(|column| column.type_().clone()).collect();
            assert_eq!(columns, read_as(statement.name), "columns of {}", statement.name);
            assert!(text.starts_with(&format!("/* outhaul:{} */ ", statement.name)), "{text}");
        }
    }

    #[test]
    fn the_catalogue_is_complete() {
        let source = include_str!("statement.rs");
        let constant = |line: &&str| line.starts_with("pub(crate) const ") && line.contains(": Statement =");
        assert_eq!(CATALOGUE.len(), source.lines().filter(constant).count());
    }
}
