-- audit_append: add one operator action to the hash-chained log, in the same transaction as the action.
-- Parameters: action, object, details, reason. Returns the row's number.
-- Index: audit_head_pkey. Locks: the head row until commit, which is what orders the chain.
create or replace function audit_append(action text, object text, details jsonb, reason text) returns bigint
language plpgsql volatile security definer
set search_path from current
as $$ /* outhaul:audit_append */
declare
  head audit_head;
  at constant timestamptz := clock_timestamp();
  actor constant text := session_user;
  n bigint;
  h bytea;
begin
  select * into strict head from audit_head for update;
  n := head.last_seq + 1;
  h := audit_hash(head.hash, n, at, actor, audit_append.action, audit_append.object, coalesce(audit_append.details, '{}'), audit_append.reason);
  insert into audit_log (seq, at, actor, action, object, details, reason, prev_hash, hash)
  values (n, at, actor, audit_append.action, audit_append.object, coalesce(audit_append.details, '{}'), audit_append.reason, head.hash, h);
  update audit_head set last_seq = n, hash = h;
  return n;
end $$;
