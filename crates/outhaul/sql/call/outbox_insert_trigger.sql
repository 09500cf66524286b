-- outbox_insert_trigger: attach outbox_insert, without the owner's own inserts where owner and users differ.
-- AFTER: a row that some other trigger leaves out must not be waited for. Partitions have it too.
-- Reads outhaul.roles, which migrate sets to on or off. Locks: SHARE ROW EXCLUSIVE on outbox_events.
do $$ /* outhaul:outbox_insert_trigger */
begin
  execute format('create or replace trigger outbox_insert after insert on outbox_events for each row %s execute function outbox_insert()',
    case when current_setting('outhaul.roles') = 'on' then format('when (current_user <> %L)', current_user) else '' end);
end $$;
