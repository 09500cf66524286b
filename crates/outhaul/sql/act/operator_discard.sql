-- operator_discard: end one dead letter for good, as an operator, on the record.
-- Parameters: id; reason, which is needed. Returns discarded, live (it is no dead letter, or not any more), ended or not_found.
-- Index: jobs_dead_pkey. Locks: the dead letter's row, the audit head.
create or replace function operator_discard(id uuid, reason text) returns text
language plpgsql volatile security definer
set search_path from current set enable_seqscan = off
as $$ /* outhaul:operator_discard */
declare
  n bigint;
begin
  if coalesce(btrim(operator_discard.reason), '') = '' then
    raise exception using errcode = 'OH001', column = 'reason',
      message = 'discarding a job needs a reason', hint = 'Say why nobody needs this job; it is kept on the record.';
  end if;
  perform from jobs_dead d where d.id = operator_discard.id for update;
  if found then
    perform from discard_dead(array[operator_discard.id], null);
    n := audit_append('jobs.discard', operator_discard.id::text, '{}', operator_discard.reason);
    return 'discarded';
  elsif exists (select from jobs j where j.id = operator_discard.id) then
    return 'live';
  elsif exists (select from jobs_finished f where f.id = operator_discard.id) then
    return 'ended';
  end if;
  return 'not_found';
end $$;
