-- lane_insert_trigger: attach lane_insert. Behind job_insert, which checks: triggers fire in the order of their names.
-- Locks: SHARE ROW EXCLUSIVE on jobs.
create or replace trigger lane_insert before insert on jobs for each row
  when (new.ordering_key is not null) execute function lane_insert() /* outhaul:lane_insert_trigger */;
