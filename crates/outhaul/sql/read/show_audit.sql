-- show_audit: operator actions, newest first. Parameters: before, a number, NULL for the end; n.
-- Index: audit_log_pkey, backwards. Locks: none.
create or replace function show_audit(before bigint default null, n integer default 50) returns table (
  seq bigint, at timestamptz, actor text, action text, object text, details text, reason text
)
language sql stable security definer
set search_path from current set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$ /* outhaul:show_audit */
  select a.seq, a.at, a.actor, a.action, a.object, a.details::text, a.reason from audit_log a
   where a.seq < coalesce(show_audit.before, 9223372036854775807)
   order by a.seq desc limit least(greatest(show_audit.n, 1), 1000)
$$;
