-- show_notifications: how full the server's notification queue is, from 0 to 1, for the alarm at 0.1.
-- Index, locks: none.
create or replace function show_notifications() returns double precision
language sql volatile security definer
set search_path from current
as $$ /* outhaul:show_notifications */
  select pg_notification_queue_usage()
$$;
