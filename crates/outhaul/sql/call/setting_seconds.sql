-- setting_seconds: one numeric setting, in seconds.
-- Index: settings_pkey. Locks: none.
create or replace function setting_seconds(name text) returns double precision
language sql stable
as $$ /* outhaul:setting_seconds */
  select (s.value #>> '{}')::double precision from settings s where s.name = setting_seconds.name
$$;
