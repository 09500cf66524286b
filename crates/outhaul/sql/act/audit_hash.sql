-- audit_hash: the hash of one row of the audit log and of the hash before it. The fields go through a JSON
-- array, so that no two different rows have one text.
-- Index, locks: none.
create or replace function audit_hash(prev bytea, seq bigint, at timestamptz, actor text, action text, object text, details jsonb, reason text)
returns bytea
language sql immutable
as $$ /* outhaul:audit_hash */
  select sha256(prev || convert_to(jsonb_build_array(seq, (date_part('epoch', at) * 1000000)::bigint, actor, action, object, details, reason)::text, 'UTF8'))
$$;
