-- job_ended_trigger: attach job_ended to the jobs that concern others, but for the functions that see to it themselves and say
-- so with a setting of their own. Locks: SHARE ROW EXCLUSIVE on jobs.
create or replace trigger job_ended after delete on jobs for each row
  when ((old.ordering_key is not null or old.permit is not null or old.limit_key is not null)
        and current_setting('outhaul_call.settles', true) is distinct from 'on')
  execute function job_ended() /* outhaul:job_ended_trigger */;
