-- refill_rate: fill a token bucket up to now, and lock it.
-- Parameters: queue; rate_key, '' for the queue's own; rate tokens within per; burst, what it holds at most, by default as
-- much as comes in a second and one at least. Returns what is in it.
-- Index: rates_pkey. Locks: its row, waiting for another claim.
create or replace function refill_rate(queue text, rate_key text, rate integer, per interval, burst integer) returns double precision
language plpgsql volatile security definer
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off
as $$ /* outhaul:refill_rate */
declare
  per_second constant double precision := refill_rate.rate / date_part('epoch', refill_rate.per);
  most constant double precision := coalesce(refill_rate.burst, greatest(1, floor(per_second)));
  filled double precision;
begin
  insert into rates (queue, rate_key) values (refill_rate.queue, refill_rate.rate_key) on conflict do nothing;
  -- A new bucket is full, and so is one that a clock which was set back has not seen for as long. The time of the row's
  -- lock, not of the statement, which may have waited.
  perform from rates r where r.queue = refill_rate.queue and r.rate_key = refill_rate.rate_key for no key update;
  update rates r
     set tokens = case when r.refilled_at = '-infinity' then most
                       else greatest(0, least(most, r.tokens
                              + greatest(0, date_part('epoch', clock_timestamp() - r.refilled_at)) * per_second)) end,
         refilled_at = clock_timestamp()
   where r.queue = refill_rate.queue and r.rate_key = refill_rate.rate_key
  returning r.tokens into filled;
  return filled;
end $$;
