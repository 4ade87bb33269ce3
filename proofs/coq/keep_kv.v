(* KeepKV's merges (proofs/keep_kv.md): attention sag, and which keys are lossless, for one query or for all. q includes
   the scale, as in the written proofs: the logit of a key k is D q k. *)
From mathcomp Require Import all_ssreflect all_algebra ring.
From kvbound Require Import seminorm combination inner_product critical_kv exponential divergence keep_kv_later.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import GRing.Theory Num.Theory Order.TTheory.
Local Open Scope ring_scope.

(* kkv-2: Let at least two entries merge and at least one other exist. If the merged entry has one vote and a convex
   combination of the members' keys, its attention is at most M / (M + R), and that is less than the members' before;
   M is the heaviest member's attention and R that of all other entries. With all votes and the weights w/W of the
   combination it is at least the members'. *)
Theorem kkv_2 (R : realFieldType) (e : exponential R) (K : lmodType R) (dot : inner_product K) (q : K) (I : finType)
    (G : {set I}) (votes combination : I -> R) (keys : I -> K) (top : I) :
  let w i := votes i * e (dot q (keys i)) in
  let D := \sum_i w i in let A i := w i / D in
  let others := \sum_(i in ~: G) w i in
  let attention votes key := let weight := votes * e (dot q key) in weight / (others + weight) in
  let A_G := \sum_(i in G) A i in
  (forall i, 1 <= votes i) -> (1 < #|G|)%N -> (0 < #|~: G|)%N ->
  top \in G -> (forall i, i \in G -> A i <= A top) ->
  (forall i, i \in G -> 0 <= combination i) -> \sum_(i in G) combination i = 1 ->
  [/\ attention 1 (\sum_(i in G) combination i *: keys i) <= A top / (A top + (1 - A_G)),
      A top / (A top + (1 - A_G)) < A_G &
      A_G <= attention (\sum_(i in G) votes i) (\sum_(i in G) (w i / \sum_(j in G) w j) *: keys i)].
Proof.
move=> w D A others attention A_G votes_ge1 two one top_G heaviest c_ge0 c_sum.
pose after x := x / (others + x); pose z i := dot q (keys i).
have w_gt0 i : 0 < w i by rewrite mulr_gt0 ?exp_gt0 // (lt_le_trans ltr01).
have [other other_out] : exists i, i \in ~: G by apply/card_gt0P.
have W_ge0 (P : pred I) : 0 <= \sum_(i | P i) w i by apply: sumr_ge0 => i _; exact: ltW.
have others_gt0 : 0 < others by rewrite /others (bigD1 other) //= ltr_spaddl.
set W := \sum_(j in G) w j; have D_by : D = others + W by rewrite /D (sum_by_set G).
have W_gt0 : 0 < W by rewrite /W (bigD1 top) //= ltr_spaddl.
have D_gt0 : 0 < D by rewrite D_by addr_gt0.
have A_G_by : A_G = W / D by rewrite /A_G -mulr_suml.
have [other_member other_in not_top] : exists2 i, i \in G & i != top.
  have : (0 < #|G :\ top|)%N by have := cardsD1 top G; rewrite top_G add1n => same; rewrite same ltnS in two.
  by move=> /card_gt0P[i]; rewrite in_setD1 => /andP[? ?]; exists i.
have top_lt : w top < W.
  rewrite /W (bigD1 top) //= ltr_addl (bigD1 other_member) /= ?other_in //.
  by rewrite ltr_spaddl //; apply: sumr_ge0 => i _; exact: ltW.
have grows x y : 0 < x -> x <= y -> after x <= after y.
  move=> x_gt0 xy; have y_gt0 := lt_le_trans x_gt0 xy.
  rewrite /after ler_pdivr_mulr ?addr_gt0 // mulrAC ler_pdivl_mulr ?addr_gt0 //.
  by rewrite !mulrDr [y * x]mulrC ler_add2r ler_wpmul2r // ltW.
have at_top : A top / (A top + (1 - A_G)) = after (w top).
  rewrite A_G_by /A /after D_by; field.
  by rewrite !gt_eqF ?addr_gt0 //.
have top_largest i : i \in G -> w i <= w top by move=> /heaviest; rewrite ler_pmul2r ?invr_gt0.
have sag : e (\sum_(i in G) combination i * z i) <= w top.
  case: (arg_maxP z top_G) => i i_G largest; apply: le_trans (top_largest i i_G).
  apply: (@le_trans _ _ (e (z i))); last by rewrite ler_pemull ?votes_ge1 // ltW ?exp_gt0.
  rewrite exp_le -[z i]mul1r -c_sum mulr_suml; apply: ler_sum => j j_G.
  by rewrite ler_wpmul2l ?c_ge0 //; exact: largest.
have logit (c : I -> R) : dot q (\sum_(i in G) c i *: keys i) = \sum_(i in G) c i * z i.
  by rewrite dot_sumr; apply: eq_bigr => i _; rewrite dot_scaler.
split.
- by rewrite at_top /attention logit mul1r; apply: grows => //; exact: exp_gt0.
- rewrite at_top A_G_by /after D_by ltr_pdivr_mulr ?addr_gt0 // mulrAC ltr_pdivl_mulr ?addr_gt0 //.
  by rewrite !mulrDr [W * w top]mulrC ltr_add2r ltr_pmul2r.
rewrite A_G_by (_ : W / D = after W) /attention ?logit; last by rewrite /after D_by.
apply: grows => //; set m := \sum_(i in G) _ * z i.
have mean : \sum_(i in G) w i * (m - z i) = 0.
  rewrite (eq_bigr (fun i => w i * m - W * (w i / W * z i))) => [|i _]; last by field; exact: lt0r_neq0.
  by rewrite sumrB -mulr_suml -mulr_sumr subrr.
apply: (@le_trans _ _ (\sum_(i in G) w i * (1 + (m - z i)))).
  by under eq_bigr do rewrite mulrDr mulr1; rewrite big_split /= mean addr0.
rewrite mulr_suml; apply: ler_sum => i _; rewrite -[in X in _ <= X](subrK (z i) m) exp_add [e _ * _]mulrC mulrA.
by rewrite ler_wpmul2l ?exp_ge // ltW.
Qed.

(* If one entry takes the place of one cluster: the change of the output by its weight and its value. *)
Lemma replaced_cluster (R : realFieldType) (E : lmodType R) (I clusters : finType) (cluster : I -> option clusters)
    (w : I -> R) (v : I -> E) (merged : clusters -> R) (value : clusters -> E) (r : clusters) :
  (forall i, 0 < w i) -> (forall s, 0 < merged s) -> (forall s : clusters, s = r) ->
  let total := merged_total cluster w merged in
  let o := true_output w v in
  let W := \sum_(i | cluster i == Some r) w i in
  let mean := merged_value cluster w v r in
  total^-1 *: (\sum_(i | cluster i == None) w i *: v i + \sum_s merged s *: value s) - o =
    total^-1 *: (merged r *: (value r - o) - W *: (mean - o)).
Proof.
move=> w_gt0 merged_gt0 one total o W mean.
have only (M : zmodType) (f : clusters -> M) : \sum_s f s = f r.
  by apply: (big_pred1 r) => s; apply/esym/eqP.
have rest_ge0 : 0 <= \sum_(i | cluster i == None) w i by apply: sumr_ge0 => i _; exact: ltW.
have total_by : total = \sum_(i | cluster i == None) w i + merged r by rewrite /total /merged_total only.
have total_gt0 : 0 < total by rewrite total_by ltr_paddl.
have D_by : \sum_i w i = \sum_(i | cluster i == None) w i + W.
  by rewrite (sum_by_members cluster) sum_of_members only.
have W_mean : W *: mean = \sum_(i | cluster i == Some r) w i *: v i.
  rewrite /mean /merged_value -/W; have [W0 | W0] := eqVneq W 0; last by rewrite scalerA mulfV ?scale1r.
  rewrite W0 scale0r big1 // => i i_r; have /eqP := W0; rewrite psumr_eq0 => [/allP/(_ i)|j _]; last exact: ltW.
  by rewrite mem_index_enum i_r gt_eqF // => /(_ isT).
have D_o : (\sum_i w i) *: o = \sum_(i | cluster i == None) w i *: v i + W *: mean.
  have [D0 | D0] := eqVneq (\sum_i w i) 0; last first.
    by rewrite W_mean /o /true_output scalerA mulfV // scale1r (sum_by_members cluster) sum_of_members only.
  have none (i : I) : False.
    have /eqP := D0; rewrite psumr_eq0 => [/allP/(_ i)|j _]; last exact: ltW.
    by rewrite mem_index_enum gt_eqF // => /(_ isT).
  by rewrite W_mean D0 scale0r !big1 ?addr0 // => i; case: (none i).
clearbody o W mean; apply: (scalerI (lt0r_neq0 total_gt0)); rewrite scalerBr !scalerA mulfV ?gt_eqF // !scale1r only.
have -> : \sum_(i | cluster i == None) w i *: v i = (\sum_i w i) *: o - W *: mean by rewrite D_o addrK.
by rewrite D_by total_by; linear; ring.
Qed.

Section Merges.
Variables (R : realFieldType) (e : exponential R) (ln : logarithm e) (K E : lmodType R) (dot : inner_product K) (q : K).
Variables (I clusters : finType) (cluster : I -> option clusters).
Variables (votes log_score : I -> R) (keys : I -> K) (v : I -> E).

Definition members r := enum [pred i | cluster i == Some r].
Notation P r := (total_votes (members r) votes).
Notation KL r := (divergence ln (members r) votes log_score).
Notation m r := (mean_log_score e (members r) votes log_score).
Notation z_star r := (log_mean_score ln (members r) votes log_score).
Notation mean_key r := (mean e (members r) votes log_score keys).

Let w i := votes i * e (dot q (keys i)).
Let predicted i := votes i * e (log_score i).

Hypothesis votes_gt0 : forall i, 0 < votes i.
Hypothesis some_member : forall r, exists i, cluster i = Some r.

Lemma members_some r : members r != [::].
Proof.
have [i i_r] := some_member r; have : i \in members r by rewrite mem_enum inE i_r.
by case: (members r).
Qed.

Lemma in_members i r : (i \in members r) = (cluster i == Some r).
Proof. by rewrite mem_enum. Qed.

Lemma sum_members (M : zmodType) (f : I -> M) r : \sum_(i <- members r) f i = \sum_(i | cluster i == Some r) f i.
Proof. exact: big_enum. Qed.

Let some_votes r i : i \in members r -> 0 < votes i. Proof. by []. Qed.

Lemma logit_of_mean r : dot q (mean_key r) =
  \sum_(i <- members r) share e (members r) votes log_score i * dot q (keys i).
Proof. by rewrite dot_sumr; apply: eq_bigr => i _; rewrite dot_scaler. Qed.

(* A key whose logit is that of the cluster's mean score, for scores up to a factor, has the cluster's weight. *)
Lemma weight_kept (r : clusters) (key : K) (shift : R) :
  (forall i, cluster i = Some r -> log_score i = dot q (keys i) + shift) -> dot q key + shift = z_star r ->
  P r * e (dot q key) = \sum_(i | cluster i == Some r) w i.
Proof.
move=> scores_of logit_by; have some := members_some r; have P_gt0 := total_votes_gt0 some (@some_votes r).
have W_gt0 := total_score_gt0 e log_score some (@some_votes r).
apply: (mulIf (exp_neq0 e shift)); rewrite -mulrA -exp_add logit_by exp_ln ?divr_gt0 // mulrC divfK ?gt_eqF //.
rewrite mulr_suml -sum_members; apply: eq_big_seq => i; rewrite in_members => /eqP i_r.
by rewrite /scored (scores_of _ i_r) exp_add mulrA.
Qed.

Lemma lossless (key : clusters -> K) (shift : clusters -> R) :
  (forall i r, cluster i = Some r -> log_score i = dot q (keys i) + shift r) ->
  (forall r, dot q (key r) + shift r = z_star r) ->
  merged_output cluster w predicted v (fun r => P r * e (dot q (key r))) = true_output w v.
Proof.
move=> scores_of logit_by.
apply: (@proportional _ _ _ _ _ _ _ _ _ (fun r => e (shift r))) => [i|r|i r i_r|r].
- by rewrite mulr_gt0 ?exp_gt0.
- exact: exp_neq0.
- by rewrite /predicted (scores_of _ _ i_r) exp_add /w; ring.
by apply: weight_kept (logit_by r) => i; exact: scores_of.
Qed.
End Merges.

(* kkv-3: If m is not 0 or KL = 0, the key z_star / m times the mean key, or the mean key itself where KL = 0, with the
   mean value and all votes does not change the output for the query whose raw scores are used, with any number of
   clusters. If m = 0, every multiple of the mean key of a single cluster changes it by A' (1 - e^-KL) times the mean
   value minus the output, which is 0 only if KL = 0 or the two are equal. *)
Theorem kkv_3 (R : realFieldType) (e : exponential R) (ln : logarithm e) (K E : lmodType R) (dot : inner_product K)
    (q : K) (I clusters : finType) (cluster : I -> option clusters) (votes : I -> R) (keys : I -> K) (v : I -> E) :
  let logit i := dot q (keys i) in
  let w i := votes i * e (logit i) in
  let P r := total_votes (members cluster r) votes in
  let KL r := divergence ln (members cluster r) votes logit in
  let m r := mean_log_score e (members cluster r) votes logit in
  let z_star r := log_mean_score ln (members cluster r) votes logit in
  let mean_key r := mean e (members cluster r) votes logit keys in
  let weight key r := P r * e (dot q (key r)) in
  let after key := merged_output cluster w w v (weight key) in
  let o := true_output w v in
  (forall i, 0 < votes i) -> (forall r, exists i, cluster i = Some r) ->
  ((forall r, m r != 0 \/ KL r = 0) -> after (fun r => (if KL r == 0 then 1 else z_star r / m r) *: mean_key r) = o) /\
  (forall r, (forall s, s = r) -> m r = 0 -> forall c : R,
    let key s := c *: mean_key s in
    let A' := weight key r / merged_total cluster w (weight key) in
    after key - o = (A' * (1 - e (- KL r))) *: (merged_value cluster w v r - o) /\
    (after key = o -> KL r = 0 \/ merged_value cluster w v r = o)).
Proof.
move=> logit w P KL m z_star mean_key weight after o votes_gt0 some.
have members_gt0 r i : i \in members cluster r -> 0 < votes i by [].
have KL_by r : KL r = m r - z_star r.
  by apply: divergence_by (members_some some r) (@members_gt0 r).
have logit_by (c : R) r : dot q (c *: mean_key r) = c * m r by rewrite dot_scaler logit_of_mean.
split=> [defined | r one m0 c key A'].
  apply: (lossless (ln := ln) v votes_gt0 some (shift := fun=> 0)) => [i r _ | r]; first by rewrite addr0.
  rewrite addr0 logit_by; case: eqP => [KL0 | /eqP KL0].
    by rewrite mul1r; apply/eqP; rewrite -subr_eq0 -KL_by KL0.
  by have [m0 | KL_0] := defined r; [rewrite divfK | rewrite KL_0 eqxx in KL0].
have P_gt0 s : 0 < P s := total_votes_gt0 (members_some some s) (@members_gt0 s).
have w_gt0 i : 0 < w i by rewrite mulr_gt0 ?exp_gt0.
have weight_gt0 s : 0 < weight key s by rewrite mulr_gt0 ?exp_gt0.
have W_by : \sum_(i | cluster i == Some r) w i = weight key r * e (- KL r).
  rewrite /weight logit_by m0 mulr0 exp_zero mulr1 KL_by m0 sub0r opprK exp_ln.
    by rewrite mulrC divfK ?lt0r_neq0 ?P_gt0 // /total_score sum_members.
  by rewrite divr_gt0 ?P_gt0 // (total_score_gt0 e logit (members_some some r) (@members_gt0 r)).
have change : after key - o = (A' * (1 - e (- KL r))) *: (merged_value cluster w v r - o).
  have := @replaced_cluster _ _ _ _ cluster w v (weight key) (merged_value cluster w v) r w_gt0 weight_gt0 one.
  rewrite /= -/o W_by => ->; rewrite /A'.
  move: (_ - o) (weight key r) (e (- _)) (merged_total _ _ _) => x a b t.
  by linear; ring.
split=> // same; have /esym/eqP := change; rewrite same subrr scaler_eq0 => /orP[|]; last first.
  by rewrite subr_eq0 => /eqP; right.
rewrite mulf_eq0 => /orP[|]; last first.
  rewrite subr_eq0 -(exp_zero e) => /eqP/exp_inj/esym/eqP; rewrite oppr_eq0 => /eqP; by left.
rewrite gt_eqF // divr_gt0 // ltr_paddl //; first by apply: sumr_ge0 => i _; exact: ltW.
by rewrite (bigD1 r) //= ltr_spaddl //; apply: sumr_ge0 => s _; exact: ltW.
Qed.

(* kkv-3-prime: For q not 0 let the key be the mean key minus KL q / N(q)^2, with the mean value and all votes. If the
   scores are those of q up to a factor for each cluster, the output does not change, with any number of clusters. No
   key nearer to the mean key has the same logit, and the distance is KL / N(q), at most ln(P / min p) / N(q), at most
   N(q) diam^2 / 8, and so at most diam sqrt(ln(P / min p) / 8). *)
Theorem kkv_3_prime (R : archiFieldType) (e : exponential R) (ln : logarithm e) (K E : lmodType R)
    (dot : inner_product K) (N : seminorm K) (q : K) (I clusters : finType) (cluster : I -> option clusters)
    (votes log_score : I -> R) (keys : I -> K) (v : I -> E) (shift : clusters -> R) :
  let w i := votes i * e (dot q (keys i)) in
  let predicted i := votes i * e (log_score i) in
  let P r := total_votes (members cluster r) votes in
  let KL r := divergence ln (members cluster r) votes log_score in
  let mean_key r := mean e (members cluster r) votes log_score keys in
  let key r := mean_key r - (KL r / N q ^+ 2) *: q in
  (forall x, N x ^+ 2 = dot x x) -> N q != 0 ->
  (forall i, 0 < votes i) -> (forall r, exists i, cluster i = Some r) ->
  (forall i r, cluster i = Some r -> log_score i = dot q (keys i) + shift r) ->
  merged_output cluster w predicted v (fun r => P r * e (dot q (key r))) = true_output w v /\
  forall r, [/\ forall other, dot q other = dot q (key r) -> N (key r - mean_key r) <= N (other - mean_key r),
    N (key r - mean_key r) = KL r / N q &
    forall least diam root, 0 < least -> (forall i, cluster i = Some r -> least <= votes i) ->
      (forall i j, cluster i = Some r -> cluster j = Some r -> N (keys i - keys j) <= diam) ->
      0 <= root -> root ^+ 2 = ln (P r / least) / 8%:R ->
      [/\ KL r / N q <= ln (P r / least) / N q, KL r / N q <= N q * diam ^+ 2 / 8%:R & KL r / N q <= diam * root]].
Proof.
move=> w predicted P KL mean_key key norm_by q0 votes_gt0 some scores_of.
have members_gt0 r i : i \in members cluster r -> 0 < votes i by [].
have q_gt0 : 0 < N q by rewrite lt0r q0 norm_ge0.
have kl r := kkv_kl ln log_score (members_some some r) (@members_gt0 r).
have KL_ge0 r : 0 <= KL r by have [_ [-> _] _ _] := kl r.
have logit_by r : dot q (key r) = dot q (mean_key r) - KL r.
  by rewrite /key dot_addr dot_oppr dot_scaler -norm_by divfK // expf_neq0.
have cauchy x y : `|dot x y| <= N x * N y.
  rewrite -ler_sqr ?nnegrE ?mulr_ge0 ?norm_ge0 // real_normK ?num_real // exprMn !norm_by; exact: dot_square.
split=> [|r].
  apply: (lossless (ln := ln) v votes_gt0 some scores_of) => r; rewrite logit_by.
  have mean_by : mean_log_score e (members cluster r) votes log_score = dot q (mean_key r) + shift r.
    rewrite logit_of_mean -[shift r]mul1r -(sum_share e log_score (members_some some r) (@members_gt0 r)).
    rewrite mulr_suml -big_split; apply: eq_big_seq => i; rewrite in_members => /eqP i_r.
    by rewrite /= (scores_of _ _ i_r) mulrDr.
  have [by_m _ _ _] := kl r; rewrite /KL -by_m mean_by; move: (dot q _) (log_mean_score _ _ _ _) => a b; ring.
have distance : N (key r - mean_key r) = KL r / N q.
  rewrite /key addrAC subrr add0r norm_opp norm_scale ger0_norm ?divr_ge0 ?sqr_ge0 //.
  by rewrite expr2; field; exact: q0.
split=> // [other same | least diam root least_gt0 at_least near root_ge0 root_by].
  rewrite distance ler_pdivr_mulr // mulrC; apply: le_trans (cauchy _ _).
  rewrite dot_addr dot_oppr same logit_by addrAC subrr add0r normrN; exact: ler_norm.
have [_ _ by_votes by_range] := kl r.
have first : KL r / N q <= ln (P r / least) / N q.
  rewrite ler_wpmul2r ?invr_ge0 ?norm_ge0 //; apply: by_votes => // i; rewrite in_members => /eqP; exact: at_least.
have second : KL r / N q <= N q * diam ^+ 2 / 8%:R.
  have [i0 i0_r] := some r; have /eqP i0_in := i0_r.
  have [low low_in lowest] := @arg_minP _ _ _ i0 (fun i => cluster i == Some r) log_score i0_in.
  have [high high_in highest] := @arg_maxP _ _ _ i0 (fun i => cluster i == Some r) log_score i0_in.
  have range : 0 <= log_score high - log_score low <= N q * diam.
    rewrite subr_ge0 lowest //= (scores_of _ _ (eqP high_in)) (scores_of _ _ (eqP low_in)).
    rewrite opprD addrACA subrr addr0 -dot_oppr -dot_addr; apply: le_trans (ler_norm _) _.
    apply: le_trans (cauchy _ _) _; rewrite ler_wpmul2l ?norm_ge0 // near //; exact/eqP.
  have /andP[range_ge0 range_le] := range.
  rewrite ler_pdivr_mulr //; apply: (@le_trans _ _ ((log_score high - log_score low) ^+ 2 / 8%:R)).
    by apply: by_range => i; rewrite in_members => i_r; apply/andP; split; [exact: lowest | exact: highest].
  rewrite (_ : N q * _ / _ * N q = (N q * diam) ^+ 2 / 8%:R); last by ring.
  rewrite ler_wpmul2r ?invr_ge0 ?ler0n // ler_sqr ?nnegrE //; exact: le_trans range_le.
split=> //; have diam_ge0 : 0 <= diam.
  by have [i i_r] := some r; apply: le_trans (near i i i_r i_r); exact: norm_ge0.
have left_ge0 : 0 <= KL r / N q by rewrite divr_ge0 ?KL_ge0 // ltW.
rewrite -ler_sqr ?nnegrE ?left_ge0 ?(mulr_ge0 diam_ge0 root_ge0) // [X in _ <= X]exprMn root_by expr2.
apply: le_trans (ler_pmul left_ge0 left_ge0 first second) _.
by rewrite le_eqVlt; apply/orP; left; apply/eqP; field; exact: q0.
Qed.

(* kkv-6: The output does not move for a query with eps = 0, whose members' scores and merged entries' are as predicted.
   And it does not move for any query, with each of the keys of the mean, of ZIP and of minimum norm, if the members of
   each cluster have the same key and the same predicted score. *)
Theorem kkv_6 (R : realFieldType) (e : exponential R) (ln : logarithm e) (K E : lmodType R) (dot : inner_product K)
    (q later : K) (I clusters : finType) (cluster : I -> option clusters) (votes log_score : I -> R) (keys : I -> K)
    (v : I -> E) :
  let w i := votes i * e (dot later (keys i)) in
  let predicted i := votes i * e (log_score i) in
  let KL r := divergence ln (members cluster r) votes log_score in
  let mean_key r := mean e (members cluster r) votes log_score keys in
  let zip r := if KL r == 0 then 1 else
    log_mean_score ln (members cluster r) votes log_score / mean_log_score e (members cluster r) votes log_score in
  let after key :=
    merged_output cluster w predicted v (fun r => total_votes (members cluster r) votes * e (dot later (key r))) in
  (forall i, 0 < votes i) -> (forall r, exists i, cluster i = Some r) ->
  (forall merged, (forall i r, cluster i = Some r -> predicted i = w i) ->
    (forall r, predicted_merged cluster predicted r = merged r) ->
    merged_output cluster w predicted v merged = true_output w v) /\
  ((forall i j r, cluster i = Some r -> cluster j = Some r -> keys i = keys j /\ log_score i = log_score j) ->
    [/\ after mean_key = true_output w v, after (fun r => zip r *: mean_key r) = true_output w v &
        after (fun r => mean_key r - (KL r / dot q q) *: q) = true_output w v]).
Proof.
move=> w predicted KL mean_key zip after votes_gt0 some; have w_gt0 i : 0 < w i by rewrite mulr_gt0 ?exp_gt0.
split=> [merged as_predicted merged_by | same].
  apply: (@proportional _ _ _ _ _ _ _ _ _ (fun=> 1)) => [//|r|i r i_r|r]; first exact: oner_neq0.
    by rewrite mul1r (as_predicted i r).
  by rewrite -merged_by; apply: eq_bigr => i /eqP i_r; exact: as_predicted i_r.
have members_gt0 r i : i \in members cluster r -> 0 < votes i by [].
have KL0 r : KL r = 0.
  apply/(divergence_eq0 ln log_score (members_some some r) (@members_gt0 r)) => i j.
  by rewrite !in_members => /eqP i_r /eqP j_r; have [] := same i j r i_r j_r.
have mean_by i r : cluster i = Some r -> mean_key r = keys i.
  move=> i_r; rewrite -[RHS]scale1r -(sum_share e log_score (members_some some r) (@members_gt0 r)) scaler_suml.
  by apply: eq_big_seq => j; rewrite in_members => /eqP j_r; have [->] := same j i r j_r i_r.
have [first first_in] : exists first : clusters -> I, forall r, cluster (first r) = Some r.
  have some_in r : exists i, cluster i == Some r by have [i /eqP] := some r; exists i.
  by exists (fun r => xchoose (some_in r)) => r; exact/eqP/(xchooseP (some_in r)).
have by_mean key : (forall r, key r = mean_key r) -> after key = true_output w v.
  move=> key_by; pose factor r := e (log_score (first r)) / e (dot later (keys (first r))).
  apply: (@proportional _ _ _ _ _ _ _ _ _ factor) => [//|r|i r i_r|r].
  - by rewrite mulf_neq0 ?invr_neq0 ?exp_neq0.
  - have [key_i score_i] := same i (first r) r i_r (first_in r).
    by rewrite /predicted /factor /w key_i score_i; field; exact: exp_neq0.
  rewrite key_by mulr_suml sum_members; apply: eq_bigr => i /eqP i_r.
  by rewrite (mean_by i r).
split; apply: by_mean => // r; first by rewrite /zip KL0 eqxx scale1r.
by rewrite KL0 mul0r scale0r subr0.
Qed.
