-- audit_verify: the first rows at which the audit chain does not hold; none when it does.
-- Whoever may write to both tables can forge a whole chain: to notice that, keep a copy of the last hash elsewhere.
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
    select coalesce(h.last_seq, l.seq),
           case when h.last_seq is null then 'the head of the chain is missing'
                when h.last_seq > l.seq then 'rows are missing at the end'
                when h.last_seq < l.seq then 'rows were added at the end'
                when h.hash <> l.hash then 'is not the row that the chain ended with'
           end
      from (select coalesce(max(a.seq), 0) as seq,
                   coalesce((select b.hash from audit_log b order by b.seq desc limit 1), '\x') as hash
              from audit_log a) l
      left join audit_head h on true
  ) x where x.finding is not null order by x.seq limit audit_verify.n
$$;
