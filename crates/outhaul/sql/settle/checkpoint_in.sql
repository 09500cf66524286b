-- checkpoint_in: move the cursor of one subscription inside the handler's own transaction, so that the effects
-- written there and the checkpoint commit together or not at all. Best called last before COMMIT: the cursor's
-- row stays locked from here on. The lease goes on.
-- Parameters: id, lease_token, claim_no of the subscription; position of the event that is handled; unparked, true
-- for one that was given back; after, the position of the checkpoint before in the same lease, which must have committed.
-- Raises OH003 when the lease is lost or the event was checkpointed before, which rolls the caller's effects back, and
-- OH004 under an isolation level other than READ COMMITTED.
-- Index: subscriptions_id, subscription_parked_pkey. Locks: the subscription's row until the caller's transaction ends.
create or replace function checkpoint_in(id uuid, lease_token uuid, claim_no integer, "position" bigint, unparked boolean default false,
  after bigint default 0)
returns void
language plpgsql volatile security definer
set search_path from current set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$ /* outhaul:checkpoint_in */
declare
  s record;
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception using errcode = 'OH004',
      message = format('checkpoint_in needs READ COMMITTED, this transaction is %s', upper(current_setting('transaction_isolation'))),
      hint = 'Begin the transaction that checkpoints with ISOLATION LEVEL READ COMMITTED.';
  end if;
  if checkpoint_in.unparked then
    select x.name into s from subscriptions x
     where x.id = checkpoint_in.id and x.lease_token = checkpoint_in.lease_token and x.lease_until > '-infinity'
       for no key update;
    if found then
      update subscriptions x
         set attempts = 0, blocked_position = null, stuck_class = null, stuck_code = null, stuck_summary = null
       where x.name = s.name and x.blocked_position = checkpoint_in."position";
      delete from subscription_parked p where p.subscription = s.name and p.position = checkpoint_in."position";
    end if;
  else
    update subscriptions x
       set position = checkpoint_in."position", attempts = 0, blocked_position = null, stuck_class = null,
           stuck_code = null, stuck_summary = null, moved_at = clock_timestamp()
     where x.id = checkpoint_in.id and x.lease_token = checkpoint_in.lease_token and x.lease_until > '-infinity'
       and x.position < checkpoint_in."position" and x.position >= checkpoint_in.after;
  end if;
  if not found then
    raise exception using errcode = 'OH003',
      message = format('the lease on the cursor of subscription %s is lost', checkpoint_in.id),
      hint = 'Another worker may handle this event now, or it was rewound; roll back and do nothing more for it.';
  end if;
end $$;
