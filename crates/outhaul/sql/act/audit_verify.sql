-- audit_verify: the first rows at which the audit chain does not hold; none when it does.
-- Parameters: n, the most findings. Index: audit_log_pkey. Locks: none.
create or replace function audit_verify(n integer default 10) returns table (seq bigint, finding text)
language sql stable security definer
set search_path from current
as $$ /* outhaul:audit_verify */
  select x.seq, x.finding from (
    select a.seq,
           case when a.seq <> coalesce(lag(a.seq) over w, 0) + 1 then 'rows are missing before it'
                when a.prev_hash <> coalesce(lag(a.hash) over w, '\x') then 'does not follow the row before it'
                when a.hash <> audit_hash(a.prev_hash, a.seq, a.at, a.actor, a.action, a.object, a.details, a.reason) then 'was changed'
           end as finding
      from audit_log a window w as (order by a.seq)
    union all
    select h.last_seq, 'rows are missing at the end'
      from audit_head h
     where h.last_seq <> coalesce((select max(a.seq) from audit_log a), 0)
        or h.hash <> coalesce((select a.hash from audit_log a order by a.seq desc limit 1), '\x')
  ) x where x.finding is not null order by x.seq limit audit_verify.n
$$;
