-- snooze: give a leased job back, due again after a delay, without spending the attempt. For workers in
-- other languages; the library settles through fail.
-- Parameters: id, lease_token, claim_no, delay. Returns snoozed, lost, or locked when it has to be tried again.
-- Index: jobs_pkey. Locks: the job's row.
create or replace function snooze(id uuid, lease_token uuid, claim_no integer, delay interval) returns text
language sql volatile security definer
set search_path from current
as $$ /* outhaul:snooze */
  select coalesce(
    (select f.state from fail(array[snooze.id], array[snooze.lease_token], array[snooze.claim_no], array['snooze'],
                              array[(date_part('epoch', snooze.delay) * 1000)::bigint],
                              array['snooze'], array[null::text], array[null::text]) f),
    'snoozed')
$$;
