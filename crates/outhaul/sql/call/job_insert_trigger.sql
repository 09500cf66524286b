-- job_insert_trigger: attach job_insert, without the owner's own inserts where owner and users differ.
-- Reads outhaul.roles, which migrate sets to on or off. Locks: SHARE ROW EXCLUSIVE on jobs.
do $$ /* outhaul:job_insert_trigger */
begin
  execute format('create or replace trigger job_insert before insert on jobs for each row %s execute function job_insert()',
    case when current_setting('outhaul.roles') = 'on' then format('when (current_user <> %L)', current_user) else '' end);
end $$;
