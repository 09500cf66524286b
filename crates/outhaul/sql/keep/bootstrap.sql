-- bootstrap: the tables in which a schema keeps its own version. The first statement of every migration.
-- serves_from is the oldest schema version whose binaries this schema still serves.
-- Locks: none on existing tables.
do $$ /* outhaul:bootstrap */
begin
  if to_regclass('schema_migrations') is null then
    create table schema_migrations (
      version     integer primary key,
      name        text not null,
      digest      text not null,
      serves_from integer not null,
      applied_at  timestamptz not null default clock_timestamp()
    );
    create table schema_functions (
      name       text primary key,
      digest     text not null,
      applied_at timestamptz not null default clock_timestamp()
    );
  end if;
end $$;
