//! The outbox through its own SQL functions.

use super::{Column, Design, Schema};
use crate::worker::Kind;

pub(crate) const EVENTS: Design = Design {
    name: "events",
    worker: Kind::Functions,
    schema: Schema::Outhaul { history: "row" },
    channel: "outhaul",
    silent: "select outhaul.publish('order.paid', 'order', $2::uuid, $1::text::jsonb, notify => false)",
    notifying: "select outhaul.publish('order.paid', 'order', $2::uuid, $1::text::jsonb)",
    many: "
        select outhaul.publish_many(array_fill('order.paid'::text, array[cardinality($1::text[])]),
            array_fill('order'::text, array[cardinality($1::text[])]), $2::uuid[], $1::text[], $2::uuid[])",
    keyed: None,
    many_keyed: None,
    columns: &[Column::Payload, Column::Id],
    build: "
        insert into outhaul.outbox_events (event_type, aggregate_type, aggregate_id, payload)
        select 'order.paid', 'order', gen_random_uuid(), jsonb_build_object('seq', n) from generate_series(1, $1::bigint) n",
};
