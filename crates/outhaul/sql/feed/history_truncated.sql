-- history_truncated: refuse to go on where events are missing, instead of stepping over them.
-- Parameters: position, the first that is missing. Raises OH006; returns nothing. Index, locks: none.
create or replace function history_truncated("position" bigint) returns boolean
language plpgsql volatile
as $$ /* outhaul:history_truncated */
begin
  raise exception using errcode = 'OH006',
    message = format('the event at position %s is not there any more', history_truncated."position"),
    hint = 'It was removed by retention or by hand. Rewind the subscription to a position that is kept, and reconcile what it missed.';
end $$;
