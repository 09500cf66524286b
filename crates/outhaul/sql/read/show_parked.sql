-- show_parked: events that a subscription went past without handling them, the latest first.
-- Parameters: name; before, a position to page on, NULL for the first page; n, the most rows, 1 to 1000.
-- Index: subscription_parked_pkey. Locks: none.
create or replace function show_parked(name text, before bigint default null, n integer default 100) returns table (
  "position" bigint, event_id uuid, event_type text, aggregate_type text, aggregate_id uuid, parked_at timestamptz, how text,
  attempts integer, error_class text, error_code text, error_summary text, unparked_at timestamptz
)
language sql stable security definer
set search_path from current
as $$ /* outhaul:show_parked */
  select p.position, p.event_id, p.event_type, p.aggregate_type, p.aggregate_id, p.parked_at, p.how, p.attempts,
         p.error_class, p.error_code, p.error_summary, p.unparked_at
    from subscription_parked p
   where p.subscription = show_parked.name and (show_parked.before is null or p.position < show_parked.before)
   order by p.position desc limit least(greatest(show_parked.n, 1), 1000)
$$;
