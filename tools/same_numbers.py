import json,csv,sys
a=json.load(open('/tmp/t/v1.json'))['traces'][0]; b=json.load(open('/tmp/t/v2.json'))['parts'][0]
C=b['cubes']; R=C['runs']['columns']; n=len(a['runs']); bad=0; count=0
def col(c,name,size): return C[c]['columns'].get(name,[None]*size)
def eq(x,y,what):
    global bad,count; count+=1
    if x!=y: bad+=1; print(what,x,y) if bad<20 else None
L=len(a['replayed_layers']); H=a['query_heads']; G=a['kv_heads']; S=a['replayed_steps']
for r,run in enumerate(a['runs']):
    for k in ['perturbation','relative','bound','tightness','kept_mass','layer_perturbation','layer_relative','recall']:
        eq(run[k]['mean'],col('runs',k,n)[r],k)
    for k in ['relative','tightness','layer_relative']: eq(run[k]['undefined'],col('runs',k+'_undefined',n)[r] or 0,k+'u')
    for k in ['violations']: eq(run[k],col('runs',k,n)[r],k)
    eq(run['max_tightness'],col('runs','max_tightness',n)[r],'mt')
    so=run['stage_one_mass']; eq(so and so['mean'],col('runs','stage_one_mass',n)[r],'so'); eq(so and so['share_at_most_half'],col('runs','stage_one_low',n)[r],'sl')
    ih=run['improved_heads']; eq(ih and ih['share'],col('runs','improved_heads',n)[r],'ih')
    m=run['merges']
    if m:
        for x,y in [('leaving','leaving'),('merged','merged'),('share_merged','found_target'),('groups','groups'),('perturbation','merge_perturbation'),('max_perturbation','max_merge_perturbation'),('group_merged',)*2,('group_evicted',)*2,('group_floor',)*2,('lossless',)*2,('violations','lossy')]: eq(m[x],col('runs',y,n)[r],y)
        l=m['later']
        if l:
            for x,y in [('perturbation','later_perturbation'),('sag','sag'),('share_predictable','predictable'),('prediction_error',)*2,('value_distance',)*2,('bound','later_bound'),('shared_bound','later_shared_bound'),('joint_bound','later_joint_bound'),('violations','later_violations')]: eq(l[x],col('runs',y,n)[r],y)
    for i,lay in enumerate(run['layers']):
        for k,kk in [('perturbation',)*2,('relative',)*2,('bound',)*2,('tightness',)*2,('kept_mass',)*2,('stage_one_mass',)*2,('stage_one_at_most_half','stage_one_low')]:
            for h in range(H): eq(lay[k] and lay[k][h], col('heads',kk,n*L*H)[(r*L+i)*H+h],k)
        for k in ['kept','recall']:
            for g in range(G): eq(lay[k] and lay[k][g], col('kv_heads',k,n*L*G)[(r*L+i)*G+g],k)
        for k in ['layer_perturbation','layer_relative']:
            for t in range(S): eq(lay[k][t], col('layer_steps',k,n*L*S)[(r*L+i)*S+t],k)
        eq(lay['entries'],col('layers','layer_entries',n*L)[r*L+i],'le')
t=0
for run in a['runs']:
    for x in run['agreement'] or []:
        T=C['tensors']['columns']; w=x['worst'] or {}
        for k in ['verdict','elements','judged','outside','undecided','median_slack','near_tie_swaps','condition_number']: eq(x[k],T.get(k,[None]*9999)[t],k)
        for k in ['error','bound','share','ulps','claimed','expected','note']: eq(w.get(k),T.get(k,[None]*9999)[t],k)
        t+=1
old=list(csv.DictReader(open('/tmp/t/v1.csv'))); new={}
for row in csv.DictReader(open('/tmp/t/v2.csv')): new[tuple(row[k] for k in ['trace','policy','budget','entries','backend','layer','step','head'])]=row
for row in old:
    o=new[tuple(row[k] for k in ['trace','policy','budget','entries','backend','layer','step','head'])]
    for k,v in row.items():
        kk={'violation':'violations'}.get(k,k)
        if row['head']=='all' and k in('perturbation','relative'): kk='layer_'+k
        eq(v,o[kk],'csv '+k)
eq(len(old),len(new),'rows')
print(count,'compared',bad,'different',t,'tensors')
