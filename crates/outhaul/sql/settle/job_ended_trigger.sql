-- job_ended_trigger: attach job_ended to the jobs that concern others. Locks: SHARE ROW EXCLUSIVE on jobs.
create or replace trigger job_ended after delete on jobs for each row
  when (old.ordering_key is not null or old.permit is not null or old.limit_key is not null)
  execute function job_ended() /* outhaul:job_ended_trigger */;
