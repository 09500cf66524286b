-- schema_state: the version of the schema, and the oldest binary it still serves.
-- Index: schema_migrations_pkey. Locks: none.
create or replace function schema_state() returns table (version integer, serves_from integer)
language sql stable security definer
set search_path from current
as $$ /* outhaul:schema_state */
  select max(m.version), max(m.serves_from)
    from schema_migrations m
$$;
