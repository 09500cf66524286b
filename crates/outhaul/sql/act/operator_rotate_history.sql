-- operator_rotate_history: name a new history of positions, as an operator, on the record. To be called once after a restore
-- into another cluster that goes its own way: readers elsewhere that still hold positions of the old history are then refused
-- instead of being given other events under the same numbers. The subscriptions of this database go on where they are.
-- Parameters: reason. Returns the new history's id. Index: outbox_feed_head_pkey. Locks: the head's row, all subscriptions' rows,
-- the audit head.
create or replace function operator_rotate_history(reason text default null) returns uuid
language plpgsql volatile security definer
set search_path from current
as $$ /* outhaul:operator_rotate_history */
declare
  head outbox_feed_head;
  new_id constant uuid := gen_random_uuid();
  n bigint;
begin
  select * into strict head from outbox_feed_head for no key update;
  update outbox_feed_head h set history_id = new_id;
  update subscriptions s set history_id = new_id
   where s.history_id = head.history_id and s.position <= head.last_position;
  n := audit_append('outbox.rotate_history', new_id::text, jsonb_build_object('was', head.history_id, 'position', head.last_position),
                    operator_rotate_history.reason);
  return new_id;
end $$;
